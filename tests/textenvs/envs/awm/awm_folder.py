"""A data folder in Agent World Model's format, with worlds and tasks of our own."""

import json
from pathlib import Path

# AWM's worlds use SQLAlchemy; this one, whose form is the same, needs FastAPI alone.
_NOTES = """
import os, random, sqlite3, uuid
from datetime import datetime
from typing import List, Optional
from fastapi import FastAPI, Query
from pydantic import BaseModel, Field

database = os.getenv("DATABASE_PATH", "sqlite:///outputs/databases/notes.db").removeprefix("sqlite:///")
app = FastAPI(title="Notes")

class Note(BaseModel):
    id: int = Field(..., description="The note's number.", example=1)
    title: str = Field(..., description="The note's title.", example="Milk")
    made_at: Optional[datetime] = Field(None, description="When it was made.", example="2024-01-01T00:00:00Z")
    token: Optional[str] = Field(None, description="Its token.", example="x")

class NewNote(BaseModel):
    title: str = Field(..., description="The note's title.", example="Milk")

def run(query, *values):
    with sqlite3.connect(database) as connection:
        return connection.execute(query, values).fetchall()

@app.get("/api/notes", summary="List notes", description="List notes by title.", operation_id="list_notes",
         response_model=List[Note])
async def list_notes(word: Optional[str] = Query(None, description="A word of the title.")):
    rows = run("SELECT id, title, made_at, token FROM notes WHERE title LIKE ?", f"%{word or ''}%")
    return [Note(id=i, title=title, made_at=made_at, token=token) for i, title, made_at, token in rows]

@app.post("/api/notes", summary="Add a note", operation_id="add_note", response_model=Note)
async def add_note(body: NewNote):
    now, token = datetime.utcnow(), f"{uuid.uuid4()}/{random.random()}"
    run("INSERT INTO notes (title, made_at, token) VALUES (?, ?, ?)", body.title, now.isoformat(" "), token)
    number = run("SELECT max(id) FROM notes")[0][0]
    return Note(id=number, title=body.title, made_at=now, token=token)

@app.delete("/api/notes/{note_id}", summary="Delete a note", operation_id="delete_note", response_model=dict)
async def delete_note(note_id: int):
    run("DELETE FROM notes WHERE id = ?", note_id)
    return {"status": "deleted"}

if __name__ == "__main__":
    import uvicorn
    uvicorn.run(app, host=os.getenv("HOST", "127.0.0.1"), port=int(os.getenv("PORT", "8000")))
"""
_TRAPS = """
import os, time
from fastapi import FastAPI

app = FastAPI(title="Traps")

@app.get("/api/repeat/{text}", summary="Repeat", operation_id="repeat", response_model=dict)
async def repeat(text: str):
    return {"text": text}

@app.post("/api/fail", summary="Fail", operation_id="fail", response_model=dict)
async def fail():
    return {"x": 1 / 0}

@app.post("/api/wait", summary="Wait", operation_id="wait", response_model=dict)
async def wait():
    time.sleep(3600)

@app.post("/api/burn", summary="Burn", operation_id="burn", response_model=dict)
async def burn():
    os._exit(7)

@app.post("/api/fill", summary="Fill", operation_id="fill", response_model=dict)
async def fill():
    return {"size": len(bytearray(1 << 40))}
"""
# The same in AWM's own form.
_ORM = """
import os
from datetime import datetime
from typing import List, Optional
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Column, DateTime, Integer, String, create_engine
from sqlalchemy.orm import declarative_base, sessionmaker

engine = create_engine(os.getenv("DATABASE_PATH", "sqlite:///x.db"), connect_args={"check_same_thread": False})
SessionLocal = sessionmaker(bind=engine)
Base = declarative_base()

class Row(Base):
    __tablename__ = "notes"
    id = Column(Integer, primary_key=True)
    title = Column(String, nullable=False)
    made_at = Column(DateTime, default=datetime.utcnow)
    token = Column(String)

Base.metadata.create_all(engine)
app = FastAPI(title="Notes")

class Note(BaseModel):
    model_config = ConfigDict(from_attributes=True)
    id: int = Field(..., description="The note's number.", example=1)
    title: str = Field(..., description="The note's title.", example="Milk")
    made_at: Optional[datetime] = Field(None, description="When it was made.", example="2024-01-01T00:00:00Z")

class NewNote(BaseModel):
    title: str = Field(..., description="The note's title.", example="Milk")

@app.get("/api/notes", summary="List notes", operation_id="list_notes", response_model=List[Note])
async def list_notes(since: Optional[datetime] = None):
    session = SessionLocal()
    rows = session.query(Row).all()
    session.close()
    return rows

@app.post("/api/notes", summary="Add a note", operation_id="add_note", response_model=Note)
async def add_note(body: NewNote):
    session = SessionLocal()
    row = Row(title=body.title)
    session.add(row)
    session.commit()
    session.refresh(row)
    note = Note.model_validate(row)
    session.close()
    return note
"""
_ADDED = """def verify_task_completion(initial_db_path: str, final_db_path: str, final_answer: str = None) -> dict:
    import sqlite3

    def titles(path):
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        rows = connection.execute("SELECT title FROM notes").fetchall()
        connection.close()
        return [title for title, in rows]

    added = sorted(titles(final_db_path))
    return {"result": "complete" if added == sorted([*titles(initial_db_path), "Bread"]) else "others"}
"""
_COUNTED = """def verify_count(initial_db_path, final_db_path, final_answer=None):
    return {"result": "complete" if re.search(r"\\b2\\b", final_answer or "") else "others"}
"""
_RAISES = "def verify_task_completion(initial_db_path, final_db_path, final_answer=None):\n    raise KeyError('rows')\n"
DDL = (
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, title TEXT NOT NULL, "
    "made_at DATETIME DEFAULT CURRENT_TIMESTAMP, token TEXT);"
)
SAMPLES = [
    "INSERT INTO notes (id, title, made_at) VALUES (1, 'Milk', datetime('now', '-3 days'));",
    "INSERT INTO notes (id, title) VALUES (2, 'Salt');",
    "INSERT INTO notes (id, title) VALUES (2, 'a row that fails');",
]
# It reads in each call where its database is.
_LATE = _NOTES.replace("connect(database)", 'connect(os.environ["DATABASE_PATH"].removeprefix("sqlite:///"))')
CODES = {"Notes 1": _NOTES, "Late": _LATE, "Notes ORM": _ORM, "Traps": _TRAPS, "Broken": "import nothing_of_this_name"}
TASKS = ["Add a note 'Bread'.", "How many notes are there?", "Do something."]
VERIFIERS = [_ADDED, _COUNTED, _RAISES]


def make_folder(folder: Path, worlds: tuple[str, ...] = ("Notes 1",)) -> Path:
    """Write a data folder with these worlds, each with three tasks."""
    verifiers = [
        {
            "scenario": name,
            "task_idx": number,
            "task": TASKS[number],
            "verification": {"code": code, "raw_response": ""},
        }
        for name in worlds
        for number, code in enumerate(VERIFIERS)
    ]
    verifiers.append({"scenario": worlds[0], "task_idx": 9, "task": "x", "verification": {"code": None}})
    sample = {"tables": [{"table_name": "notes", "reasoning": "Notes.", "insert_statements": SAMPLES}]}
    tables = {"tables": [{"name": "notes", "ddl": DDL, "indexes": ["CREATE INDEX titles ON notes(title);"]}]}
    files = {
        "gen_tasks.jsonl": [{"scenario": name, "tasks": TASKS} for name in worlds],
        "gen_db.jsonl": [{"scenario": name, "db_schema": tables, "db_path": f"./{name}.db"} for name in worlds],
        "gen_sample.jsonl": [
            {"scenario": name, "tables_count": 1, "inserts_count": 3, "sample_data": sample} for name in worlds
        ],
        # In another order, as in AWM's own files.
        "gen_envs.jsonl": [
            {"scenario": name, "db_path": f"./{name}.db", "full_code": CODES[name]} for name in reversed(worlds)
        ],
        "gen_verifier.pure_code.jsonl": verifiers,
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in files.items():
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder
