"""LangGraph: a graph of a model and its tools, with LangChain's client for OpenAI."""

from arithmetic import INSTRUCTIONS, compute, grade
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


@tool
def calculate(a: float, sign: str, b: float) -> str:
    """Work out one operation."""
    return compute(a, sign, b)


def make_model(base_url, key, *, responses=False, stream=False, **options):
    llm = ChatOpenAI(
        model="policy",
        base_url=base_url,
        api_key=key,
        use_responses_api=responses,
        streaming=stream,
        max_retries=0,
        **options,
    )
    return llm.bind_tools([calculate])


def make_graph(call_model):
    builder = StateGraph(MessagesState)
    builder.add_node("model", call_model)
    builder.add_node("tools", ToolNode([calculate]))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    builder.add_edge("tools", "model")
    return builder.compile()


def run(task, base_url, key, **options):
    model = make_model(base_url, key, **options)

    def call_model(state: MessagesState):
        return {"messages": [model.invoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}

    state = make_graph(call_model).invoke({"messages": [HumanMessage(task.question)]})
    return grade(task, state["messages"][-1].text)


async def run_async(task, base_url, key):
    model = make_model(base_url, key)

    async def call_model(state: MessagesState):
        return {"messages": [await model.ainvoke([SystemMessage(INSTRUCTIONS), *state["messages"]])]}

    state = await make_graph(call_model).ainvoke({"messages": [HumanMessage(task.question)]})
    return grade(task, state["messages"][-1].text)
