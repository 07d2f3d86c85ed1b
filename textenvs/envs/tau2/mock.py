"""The mock domain: tasks of a team, and the notifications of its user."""

from __future__ import annotations

from typing import Any

from .database import Record, Side


class Mock(Side):
    """The assistant's side."""

    def create_task(self, user_id: str, title: str, description: str | None = None) -> Record:
        self._record("users", user_id, f"User {user_id} not found")
        task_id = f"task_{sum(1 for _ in self.db.all('tasks')) + 1}"
        task = {"task_id": task_id, "title": title, "description": description, "status": "pending"}
        self.db.put("tasks", task_id, task)
        self.db.edit("users", user_id)["tasks"].append(task_id)
        return task

    def get_users(self) -> list[Record]:
        return [user for _, user in self.db.all("users")]

    def update_task_status(self, task_id: str, status: str) -> Record:
        self._record("tasks", task_id, f"Task {task_id} not found")
        task = self.db.edit("tasks", task_id)
        task["status"] = status
        return task

    def transfer_to_human_agents(self, summary: str) -> str:
        return self.TRANSFERRED

    def assert_number_of_tasks(self, user_id: str, expected_number: int) -> bool:
        return len(self._record("users", user_id, f"User {user_id} not found")["tasks"]) == expected_number

    def assert_task_status(self, task_id: str, expected_status: str) -> bool:
        return bool(self._record("tasks", task_id, f"Task {task_id} not found")["status"] == expected_status)


class MockUser(Side):
    """The user's inbox."""

    def check_notifications(self) -> list[Record]:
        return [notification for _, notification in self.db.all("notifications")]

    def dismiss_notification(self, notification_id: str) -> str:
        self._notification(notification_id)
        self.db.edit("notifications", notification_id)["status"] = "read"
        return f"Notification {notification_id} dismissed"

    def add_notification(self, notification_id: str, message: str, task_id: str | None = None) -> Record:
        note: dict[str, Any] = {"notification_id": notification_id, "message": message, "status": "unread"}
        return self.db.put("notifications", notification_id, {**note, "task_id": task_id})

    def assert_notification_status(self, notification_id: str, expected_status: str) -> bool:
        return bool(self._notification(notification_id)["status"] == expected_status)

    def _notification(self, notification_id: str) -> Record:
        return self._record("notifications", notification_id, f"Notification {notification_id} not found")
