"""The fake service, and clients of it."""

import pytest
from fake_service import FakeService

from textenvs.chat import ChatClient


@pytest.fixture
def service():
    with FakeService() as service:
        yield service


@pytest.fixture
async def make(service):
    """Make clients of the fake service, which are closed at the end."""
    clients = []

    def make(**options):
        clients.append(ChatClient("tiny", **{"base_url": service.url} | options))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()
