"""Chat services: one OpenAI-compatible client for simulated users, judges and policies (extra ``chat``)."""

from .answer import Completion, Usage
from .budget import reset_budgets
from .client import ChatClient, Statistics
from .clients import client_for, close_clients, statistics
from .errors import BudgetExceeded, CacheError, ChatError, ChatFailure, InvalidReply, KeyMissing, PromptTooLong
from .spec import Budget, ChatSpec, Price, SpecLike
from .structured import ask

__all__ = [
    "Budget",
    "BudgetExceeded",
    "CacheError",
    "ChatClient",
    "ChatError",
    "ChatFailure",
    "ChatSpec",
    "Completion",
    "InvalidReply",
    "KeyMissing",
    "Price",
    "PromptTooLong",
    "SpecLike",
    "Statistics",
    "Usage",
    "ask",
    "client_for",
    "close_clients",
    "reset_budgets",
    "statistics",
]
