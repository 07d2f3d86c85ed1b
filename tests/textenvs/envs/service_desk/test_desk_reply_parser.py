"""The parser of replies: sentences as service agents write them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.service_desk.reply_parser import ParsedReply, mentions, understand, verdict

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


@pytest.mark.parametrize(("slots", "text"), [(slots, text) for slots, texts in ASKING.items() for text in texts])
def test_questions(slots, text):
    parsed = understand(text)
    expected = set(slots.split())
    assert expected <= parsed.asks
    assert parsed.asks - expected <= {"payment", "wish", "items"}  # what comes with it, and does no harm
    assert not parsed.confirm
    assert not parsed.done
    assert not parsed.transferred


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
def test_consent_requests(text):
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
def test_completion_claims(text):
    parsed = understand(text)
    assert parsed.done
    assert not parsed.refused
    assert not parsed.confirm


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
def test_no_completion_claims(text):
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
    parsed = understand(text)
    assert parsed.refused
    assert reason in parsed.reasons
    assert not parsed.done


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
def test_any_text_can_be_parsed(text):
    assert isinstance(understand(text), ParsedReply)
    for kind, value in (("amount", "100"), ("date", "2025-03-04"), ("text", "TRK1")):
        verdict(text, kind, value)


@given(st.integers(0, 10**9), st.integers(0, 99))
def test_amounts_in_any_notation(dollars, cents):
    value = str(dollars * 100 + cents)
    for written in (f"${dollars}.{cents:02}", f"{dollars:,}.{cents:02}", f"It is ${dollars:,}.{cents:02}, in all."):
        assert verdict(written, "amount", value) == "right"
    if cents % 10 == 0:
        assert verdict(f"{dollars}.{cents // 10} dollars", "amount", value) == "right"
    for other in (f"W{dollars}", f"{dollars}.{cents:02}5", f"card-{dollars}"):
        assert verdict(other, "amount", value) == "none"


ANSWERS = [
    # question, value, role: what a careful model would write
    ("Your order of $120.00 gets a refund of $77.60.", "7760", "refund"),
    ("You will get $77.60 back to your card.", "7760", "refund"),
    ("The e-reader cost $120.00; less the restocking fee of $18.00, you get $102.00 back.", "10200", "refund"),
    ("You'll receive $102.00 ($120.00 minus an $18.00 restocking fee).", "10200", "refund"),
    ("The refund would be **$51.00** ($60.00 - $9.00).", "5100", "refund"),
    ("$51.00 would go back to your PayPal account.", "5100", "refund"),
    ("If you return the lamp, $45.20 will be refunded to card_1234.", "4520", "refund"),
    ("The price was $60.00. After the 15% fee of $9.00, your refund is $51.00.", "5100", "refund"),
    ("I've cancelled order W1234567 and refunded $64.40 to paypal_1234.", "6440", "refund"),
    ("The return is registered: 2 items, $64.40 back within 5 days.", "6440", "refund"),
    ("Your refund: $1,064.40.", "106440", "refund"),
    ("You paid $52.40 in total for order W1234567.", "5240", "total"),
    ("The total for that order was $52.40, including $4.40 delivery.", "5240", "total"),
    ("You paid $52.40 in all: the lamp at a price of $48.00 and a delivery fee of $4.40.", "5240", "total"),
    ("Your card was charged $52.40.", "5240", "total"),
    ("It came to $52.40 altogether.", "5240", "total"),
    ("There is $20.00 left on your gift card.", "2000", "balance"),
    ("Your gift card balance is 20.00 dollars.", "2000", "balance"),
    ("The remaining balance on gift_card_1234 is $20.00.", "2000", "balance"),
    ("The delivery fee was $4.40.", "440", "fee"),
    ("You paid $52.40 in total, of which $4.40 was for shipping.", "440", "fee"),
    ("I have refunded the $4.40 delivery fee.", "440", "fee"),
    ("You would have to pay $12.00 more.", "1200", "charge"),
    ("The new one has a price of $72.00, the old one $60.00 each, so an extra $12.00 is charged.", "1200", "charge"),
    ("The price difference of $12.00 will be charged to your card.", "1200", "charge"),
    ("Your order was placed on 2025-03-01 and should arrive on 2025-03-04.", "2025-03-04", "promised"),
    ("It is expected on March 4, 2025.", "2025-03-04", "promised"),
    ("The parcel was shipped on March 2 and is due on March 4.", "2025-03-04", "promised"),
    ("Today is 2025-03-01; the promised delivery date is Tuesday, March 4th, 2025.", "2025-03-04", "promised"),
    ("The estimated arrival is 2025-03-04 (March 4).", "2025-03-04", "promised"),
    ("You placed this order on 2025-03-04, and it should arrive on 2025-03-08.", "2025-03-04", "placed"),
    ("It was delivered on 2025-03-04.", "2025-03-04", "delivered"),
    ("It was delivered on 2025-02-02, so you can return it until 2025-03-04.", "2025-03-04", "deadline"),
    ("The return window ends on March 4.", "2025-03-04", "deadline"),
    ("Your tracking number is **TRK123456789**.", "TRK123456789", ""),
    ("Order W1234567 (desk lamp) travels as TRK123456789, expected on 2025-03-04.", "TRK123456789", ""),
]


def kind_of(value):
    return "amount" if value.isdigit() else "date" if "-" in value else "text"


@pytest.mark.parametrize(("text", "value", "role"), ANSWERS)
def test_natural_answers_are_right(text, value, role):
    assert verdict(text, kind_of(value), value, role) == "right"


@pytest.mark.parametrize(("text", "value", "role"), ANSWERS)
def test_second_value_of_a_role_is_several(text, value, role):
    other = {"amount": "$3.33", "date": "2025-03-17", "text": "TRK999999999"}[kind_of(value)]
    assert verdict(f"{text} Or it is one of: {other}.", kind_of(value), value, role) == "several"
    assert verdict(f"Perhaps {other}. {text}", kind_of(value), value, role) == "several"


@given(st.integers(2, 60), st.integers(0, 59), st.sampled_from(["refund", "total", "balance", "charge", "fee", ""]))
def test_list_of_amounts_is_no_answer(count, right, role):
    listed = ", ".join(f"${n}.20" for n in range(1, count + 1))
    value = str((right % count + 1) * 100 + 20)
    for text in (f"It is one of these: {listed}.", f"You get {listed} back.", f"Refund: {listed}"):
        assert verdict(text, "amount", value, role) != "right"


@given(st.integers(2, 28), st.integers(1, 28), st.sampled_from(["promised", "placed", "delivered", "deadline", ""]))
def test_list_of_days_is_no_answer(count, right, role):
    for form in ("2025-03-{:02}", "March {}", "{}th of March"):
        listed = ", ".join(form.format(day) for day in range(1, count + 1))
        assert verdict(f"The days are {listed}.", "date", f"2025-03-{right % count + 1:02}", role) != "right"


def test_values_of_every_role_are_no_answer():
    every = "It was placed on 2025-03-01, shipped on 2025-03-02, delivered on 2025-03-05, promised for 2025-03-04, "
    assert verdict(f"{every} and can be returned until 2025-04-04.", "date", "2025-03-04", "promised") == "several"


def test_pasted_results_are_no_answer():
    pasted = '{"order_id":"W1234567","promised":"2025-03-04","tracking":"TRK123456789"}'
    assert verdict(pasted, "text", "TRK123456789") == "several"
    assert verdict(pasted, "date", "2025-03-04", "promised") == "several"


def test_wrong_and_missing_values():
    assert verdict("You get $5.00 back.", "amount", "700", "refund") == "wrong"
    assert verdict("Is it $7.00?", "amount", "700", "refund", statements=True) == "none"
    assert verdict("You paid $7.00 in total.", "amount", "700", "refund") == "none"
    assert verdict("In 30 days, for 2 items.", "amount", "200", "refund") == "none"
    assert verdict("It is TRK1234.", "text", "TRK123") == "wrong"


@pytest.mark.parametrize(
    "text", ["on 2025-03-04", "March 4", "Mar. 4th, 2025", "4 March", "the 4th of March", "03/04/2025", "3/4"]
)
def test_dates_in_any_notation(text):
    assert verdict(f"It comes {text}.", "date", "2025-03-04") == "right"
    for other in ("2025-03-14", "2025-04-05", "2025-05-04"):
        assert verdict(f"It comes {text}.", "date", other) == "wrong"


def test_mentions_needs_whole_words():
    assert mentions("The rain\njackets, please", "rain jacket")
    assert mentions("rain-jacket", "Rain Jacket")
    assert mentions("a 0.5L bottle", "0.5 L")
    assert not mentions("brainjacket", "rain jacket")
    assert not mentions("anything", "")
    assert not re.search("x", "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("The change is free of charge.", "right"),
        ("There is no extra fee for you.", "right"),
        ("It costs nothing.", "right"),
        ("$0.00 would be charged.", "right"),
        ("It costs $3.00.", "wrong"),
        ("There is a fee of $3.00.", "wrong"),
        ("There is no fee for Plus members; you would be charged $3.00.", "wrong"),
        ("I will send it there.", "none"),
    ],
)
def test_wordings_of_no_money(words, expected):
    assert verdict(words, "amount", "0", "cost") == expected
    assert verdict(words, "amount", "300", "cost") == {"right": "wrong", "wrong": "right"}.get(expected, expected)


def test_answers_to_questions_name_two_values():
    for addition, expected in (
        ("", "right"),
        (" It was placed on 2025-02-03.", "right"),
        (" 2025-02-03, 2025-02-09.", "several"),
    ):
        words = f"You paid $12.40 in all.{addition}"
        assert verdict(words, "amount", "1240", "total", statements=True) == expected
    words = "You paid $12.40 in all for TRK123456789, which you placed on 2025-02-03."
    assert verdict(words, "amount", "1240", "total", statements=True) == "several"
    assert verdict(words, "amount", "1240", "total") == "right"
