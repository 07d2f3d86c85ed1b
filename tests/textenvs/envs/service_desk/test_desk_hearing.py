"""What the user understands: sentences as service agents write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.service_desk.reply_parser import MAX_AMOUNTS, Heard, amounts, mentions, tells, understand

ASKING = {
    "email": [
        "I'd be happy to help! Could you please provide your email address so I can look up your account?",
        "Before I proceed, I need to verify your identity. Could you provide your e-mail?",
        "Could you please confirm your email address?",
    ],
    "name zip": [
        "Please tell me your full name and your zip code.",
        "I wasn't able to find an account with that email. Could you give me your full name and zip code instead?",
    ],
    "email name zip": [
        "To get started, may I have your full name and zip code, or the **email address** of your account?",
    ],
    "name": ["May I know your name please?"],
    "identity": ["Could you verify your account details, please?", "I need to verify who you are first, please."],
    "order": [
        "Could you please share the order number for the item you\u2019d like to return?",
        "Which order is this about?",
        "Can you please confirm the order number?",
        "I'll need your order ID.",
    ],
    "order reason": ["Which order would you like to cancel, and could you tell me the reason for cancellation?"],
    "items": ["Which items is it about?", "Which of them would you like to return?", "Give me the item ID."],
    "items variant": ["Which item would you like to exchange, and what variant would you like instead?"],
    "variant": [
        "What size and color would you prefer?",
        "Which variant would you like instead?",
        "What would you like to exchange it for?",
    ],
    "address": ["What is the new shipping address?", "Where should we send it?"],
    "reason": ["Why do you want to cancel it?", "I can help with that. What's the reason for the return?"],
    "payment": ["How would you like to receive the refund?"],
    "wish": ["How can I help you today?", "What would you like me to do?", "Would you like to return or exchange it?"],
}


@pytest.mark.parametrize(("asked", "text"), [(asked, text) for asked, texts in ASKING.items() for text in texts])
def test_questions(asked, text):
    heard = understand(text)
    wanted = set(asked.split())
    assert wanted <= heard.asks
    assert heard.asks - wanted <= {"payment", "wish", "items"}  # what comes with it, and does no harm
    assert not heard.confirm
    assert not heard.done
    assert not heard.transferred


@pytest.mark.parametrize(
    "text",
    [
        "I would cancel order W1234567 and pay $45.00 back to card_1234. Do you confirm (yes/no)?",
        "Here are the details:\n- **Order:** W1234567\n- **Refund:** $62.00\n\nDo you want me to proceed?",
        "Just to confirm, you would like to return the lamp from order W1234567. Is that correct?",
        'Please confirm with "yes" and I will go ahead with the exchange.',
        "If you'd like, I can cancel it. Should I?",
        "Shall I go ahead?",
        "Would you like to cancel this order?",
        "Refunds can only go to the original payment method. Would you like me to proceed with that?",
    ],
)
def test_asking_for_a_yes(text):
    assert understand(text).confirm
    assert not understand(text).done


@pytest.mark.parametrize(
    "text",
    [
        "Your order W1234567 has been successfully cancelled.",
        "Done: order W1234567 is cancelled. Is there anything else?",
        "I\u2019ve updated the shipping address for order W1234567.",
        "The return has been processed and $52.70 has been refunded to paypal_1234.",
        "Great news! The exchange is all set.",
        "I have registered the return.",
        "We cancelled it for you.",
    ],
)
def test_saying_that_it_is_done(text):
    heard = understand(text)
    assert heard.done
    assert not heard.refused
    assert not heard.confirm


@pytest.mark.parametrize(
    "text",
    [
        "Once it is cancelled, you get your money back.",
        "The order has not been cancelled.",
        "Your order was placed on 2025-01-02.",
        "Your order is being processed.",
        "Fees are refunded only if the parcel is more than 3 days late.",
        "It can be returned within 30 days.",
        "I will cancel it as soon as you agree.",
        "Has it been cancelled already?",
    ],
)
def test_not_done_yet(text):
    assert not understand(text).done


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("I'm sorry, but I'm unable to cancel this order because it has already been shipped.", "shipped"),
        ("Only pending orders can be cancelled.", "shipped"),
        ("Unfortunately, it was delivered more than 30 days ago, outside of our return window.", "window"),
        ("I can\u2019t take it back: the lamp was a final sale.", "final_sale"),
        ("That order belongs to a different customer, so I cannot share anything about it.", "not_yours"),
        ("I can only assist with orders on your own account.", "not_yours"),
        ("I can't cancel it for this reason; only if it is no longer needed or was a mistake.", "cancel_reason"),
        ("Refunds can only be issued to the original payment method.", "payment"),
        ("The navy one is currently out of stock.", "stock"),
        ("That variant is not available at the moment.", "stock"),
        ("No refund is due, as it came within 3 days of the promised date.", "on_time"),
        ("It arrived 2 days after the promised date, so I cannot refund the fee.", "on_time"),
        ("Your order hasn't been delivered yet, so it can't be returned.", "not_delivered"),
        ("I'm not able to locate any account with this information, so I can't verify your identity.", "identity"),
    ],
)
def test_refusals_and_their_reasons(text, reason):
    heard = understand(text)
    assert heard.refused
    assert reason in heard.reasons
    assert not heard.done


@pytest.mark.parametrize("text", ["Can you not find the number?", "No problem, it is no longer needed.", "Sure!"])
def test_no_refusal(text):
    assert not understand(text).refused


def test_handing_over():
    for text in (
        "I'm transferring you to a human agent now who will assist you further.",
        "I have escalated your case to a human colleague. They will contact you shortly.",
        "I have handed your case over to a human colleague, who will contact you soon.",
    ):
        assert understand(text).transferred
    for text in (
        "Would you like me to transfer you to a human agent?",
        "I can transfer you to a human colleague.",
        "I cannot transfer you to a human colleague.",
        "If it does not come, a human colleague will help you.",
    ):
        assert not understand(text).transferred


@given(st.text(max_size=300))
def test_anything_can_be_heard(text):
    assert isinstance(understand(text), Heard)
    amounts(text)
    for kind, value in (("amount", "100"), ("date", "2025-03-04"), ("text", "TRK1")):
        tells(text, kind, value)


@given(st.integers(0, 10**9), st.integers(0, 99))
def test_amounts_however_they_are_written(dollars, cents):
    value = dollars * 100 + cents
    for written in (f"${dollars}.{cents:02}", f"{dollars:,}.{cents:02}", f"It is ${dollars:,}.{cents:02}, in all."):
        assert amounts(written) == {value}
    if cents % 10 == 0:
        assert amounts(f"{dollars}.{cents // 10} dollars") == {value}
    assert amounts(f"W{dollars}") == amounts(f"{dollars}.{cents:02}5") == amounts(f"card-{dollars}") == set()


def test_who_says_all_amounts_has_said_none():
    few = " ".join(f"${n}.00" for n in range(MAX_AMOUNTS))
    assert tells(few, "amount", "500")
    assert not tells(f"{few} $99.00", "amount", "500")


def test_decoys():
    assert tells("It is TRK123.", "text", "TRK123", ["TRK124"])
    assert not tells("It is TRK123 or TRK124.", "text", "TRK123", ["TRK124"])
    assert not tells("It is TRK1234.", "text", "TRK123")


@pytest.mark.parametrize(
    "text", ["on 2025-03-04", "March 4", "Mar. 4th, 2025", "4 March", "the 4th of March", "03/04/2025", "3/4"]
)
def test_dates_however_they_are_written(text):
    assert tells(f"It comes {text}.", "date", "2025-03-04")
    for other in ("2025-03-14", "2025-04-05", "2025-05-04"):
        assert not tells(f"It comes {text}.", "date", other)


def test_words_are_whole():
    assert mentions("The rain\njackets, please", "rain jacket")
    assert mentions("rain-jacket", "Rain Jacket")
    assert mentions("a 0.5L bottle", "0.5 L")
    assert not mentions("brainjacket", "rain jacket")
    assert not mentions("anything", "")
    assert not re.search("x", "")
