"""The simulated customer: answers questions, discloses nothing else, consents only to the wish, and ends the talk."""

import functools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.envs.service_desk import ServiceDeskTasks
from textenvs.envs.service_desk.scenario import scenario_of
from textenvs.envs.service_desk.user import begin, listen
from textenvs.text import load_yaml

SETS = {level: ServiceDeskTasks(level) for level in ("easy", "medium", "hard")}
tasks = st.tuples(st.sampled_from(tuple(SETS)), st.integers(0, 60))

#: What an assistant may say; {order} and {thing} are filled in.
PHRASES = (
    "",
    "lorem ipsum",
    "What is your email address?",
    "Please tell me your full name and zip code.",
    "What is the order number?",
    "Which items is it about?",
    "Why?",
    "What is the new address?",
    "Which variant would you like instead?",
    "Your email, name, zip code, order number, items, reason, variant and address, please?",
    "I would cancel order {order}. Do you confirm?",
    "I would return the {thing} of order {order} and refund it. Do you confirm?",
    "I would do what you want. Do you confirm?",
    "Done: it is cancelled.",
    "I cannot do that.",
    "I cannot do that: it was more than 30 days ago.",
    "I cannot do that: it was a final sale.",
    "I cannot verify who you are.",
    "I could not find this. Please check.",
    "A human colleague will contact you.",
    "Would you like me to transfer you to a human?",
    "One moment.",
    "Is there anything else?",
    "It is TRK123456789, on 2025-03-04, $12.40.",
    "x" * 5000,
)


@functools.cache
def story(which):
    level, index = which
    return scenario_of(SETS[level][index])


def filled(phrase, scenario):
    wish = scenario.wishes[0]
    return phrase.replace("{order}", wish.order_id or "W1").replace("{thing}", (wish.things or ("thing",))[0])


def private_pieces(scenario):
    """Return the data that the user discloses only when asked, by kind."""
    persona = scenario.persona
    pieces = {"email": persona.email, "name": persona.last_name, "zip": persona.zip_code}
    for i, wish in enumerate(scenario.chain):
        pieces |= {f"order {i}": wish.order_id, f"address {i}": str(wish.address or ""), f"why {i}": wish.reason_words}
        pieces |= {f"thing {i}.{j}": thing for j, thing in enumerate(wish.things)}
    return {name: piece for name, piece in pieces.items() if piece}


@given(which=tasks, replies=st.lists(st.sampled_from(PHRASES), min_size=60, max_size=60))
def test_talk_always_ends(which, replies):
    scenario = story(which)
    state, words = begin(scenario)
    seen = [words]
    for turn, reply in enumerate(replies, start=1):
        state, words = listen(scenario.persona, state, filled(reply, scenario))
        seen.append(words)
        assert words.strip()
        assert state.turns == turn
        assert state.annoyance <= scenario.persona.patience
        assert (state.wish is None) == bool(state.ended)
        if state.ended:
            break
    assert state.ended
    assert "Goodbye" in seen[-1]
    assert not any("Goodbye" in words for words in seen[:-1])
    assert (state.ended == "left") == (state.annoyance == scenario.persona.patience)


def listen_to(scenario, state, reply):
    return listen(scenario.persona, state, filled(reply, scenario))


@given(which=tasks, replies=st.lists(st.sampled_from(PHRASES), max_size=25))
def test_message_discloses_at_most_two_kinds(which, replies):
    scenario = story(which)
    pieces = private_pieces(scenario)
    state, words = begin(scenario)
    assert not [name for name, piece in pieces.items() if piece in words]
    for reply in replies:
        if state.ended:
            break
        state, words = listen_to(scenario, state, reply)
        kinds = {name.split()[0] for name, piece in pieces.items() if piece in words}
        kinds -= {"name"} if "zip" in kinds else set()  # name and zip code go together
        if "I do not have the order number" in words:
            kinds -= {"order"}  # the things are said instead of it
        assert len(kinds) <= 2, words


@given(
    which=tasks, replies=st.lists(st.sampled_from(("", "lorem ipsum", "One moment.", "Hm.", "Is there anything else?")))
)
def test_unasked_customer_discloses_nothing(which, replies):
    scenario = story(which)
    pieces = private_pieces(scenario)
    state, _ = begin(scenario)
    for reply in replies:
        if state.ended:
            break
        state, words = listen_to(scenario, state, reply)
        assert not [name for name, piece in pieces.items() if piece in words]


def talk(scenario, *replies, required_asked=True):
    """Play a talk in which the customer was asked the questions that the rules require, or was not."""
    state, _ = begin(scenario)
    state = replace(state, disclosed=state.disclosed | state.wish.asks) if required_asked else state
    words = ""
    for reply in replies:
        state, words = listen(scenario.persona, state, reply)
    return state, words


def first(level, kind, fits=lambda scenario: True):
    tasks = ServiceDeskTasks(level, kinds=[kind])
    return next(s for i in range(100) for s in [scenario_of(tasks[i])] if s.kind == kind and fits(s))


def by_heart(scenario):
    return scenario.persona.knows_email and scenario.persona.knows_order


def test_one_proof_of_identity_is_enough():
    scenario = first("medium", "exchange", lambda s: s.persona.knows_email)
    state, words = talk(scenario, "Your email address, or your full name and zip code, please?")
    assert scenario.persona.email in words
    assert scenario.persona.zip_code not in words
    state, words = talk(scenario, "Your email address?", "And your full name and zip code?")
    assert scenario.persona.last_name in words
    assert scenario.persona.zip_code in words
    scenario = first("medium", "exchange", lambda s: not s.persona.knows_email)
    state, words = talk(scenario, "Your email address, please?")
    assert "do not remember" in words
    assert scenario.persona.zip_code not in words
    state, words = talk(scenario, "Your email address, or your full name and zip code, please?")
    assert scenario.persona.zip_code in words


def test_repeated_question_costs_patience():
    scenario = first("easy", "cancel")
    state, words = talk(scenario, "What is your email?")
    assert state.annoyance == 0
    state, words = talk(scenario, "What is your email?", "What is your email?")
    assert state.annoyance == 1
    assert scenario.persona.email in words


def test_unknown_order_number_is_described():
    scenario = first("medium", "exchange", lambda s: not s.persona.knows_order)
    _, words = talk(scenario, "What is the order number?")
    assert scenario.wishes[0].things[0] in words
    assert scenario.wishes[0].order_id not in words


@pytest.mark.parametrize(
    ("proposal", "answer"),
    [
        ("I would cancel order {order} and pay $5 back. Do you confirm?", "Yes"),
        ("I would cancel the order with the {thing}. Is that correct?", "Yes"),
        ("I would cancel order W0000000. Do you confirm?", "not the order I mean. I mean {order}"),
        ("I would cancel it. Do you confirm?", "Which order"),
        ("I would do something with order {order}. Do you confirm?", "What exactly"),
    ],
)
def test_yes_only_to_the_wish(proposal, answer):
    scenario = first("easy", "cancel")
    state, words = talk(scenario, filled(proposal, scenario))
    assert filled(answer, scenario) in words
    granted = scenario.wishes[0].grants if answer == "Yes" else set()
    assert state.consents == granted


def test_guesses_are_answered():
    scenario = first("easy", "cancel")
    right = filled("Is it the order with the {thing}?", scenario)
    assert talk(scenario, right)[1] == "Yes, that is right."
    assert talk(scenario, right)[0].annoyance == 0
    assert talk(scenario, "Do you mean order W0000000?")[1].startswith("No")
    assert not talk(scenario, right)[0].consents


def test_yes_needs_right_items_variant_and_address():
    swap = first("medium", "exchange", by_heart)
    (thing,), variant, order = swap.wishes[0].things, ", ".join(swap.wishes[0].wanted), swap.wishes[0].order_id
    assert "what about" in talk(swap, f"I would exchange your item of order {order} for {variant}. Do you confirm?")[1]
    assert "Which one" in talk(swap, f"I would exchange the {thing} of order {order}. Do you confirm?")[1]
    state, words = talk(swap, f"I would exchange the {thing} of order {order} for {variant}. Do you confirm?")
    assert words.startswith("Yes")
    assert state.consents == {("exchange_items", order), ("charge", order)}
    move = first("easy", "change-address")
    order, address = move.wishes[0].order_id, move.wishes[0].address
    assert "which address" in talk(move, f"I would send order {order} to somewhere else. Do you confirm?")[1]
    assert talk(move, f"I would send order {order} to {address}. Do you confirm?")[1].startswith("Yes")


def test_customer_asks_for_missing_facts():
    scenario = first("easy", "cancel")
    order, (fact,) = scenario.wishes[0].order_id, scenario.wishes[0].facts
    yes, done = f"I would cancel order {order}. Do you confirm?", "Done: it is cancelled."
    state, words = talk(scenario, yes, done)
    assert (words, state.ended) == (fact.ask, "")
    state, words = talk(scenario, yes, done, f"You get ${int(fact.value) / 100:.2f} back.")
    assert (state.ended, state.outcomes) == ("closed", ("done",))
    state, _ = talk(scenario, yes, done, "A lot.", "$4.20 or $5.20 come back.")
    assert (state.ended, state.annoyance) == ("", 2)
    state, _ = talk(scenario, yes, done, "You get $0.01 back.")
    assert (state.ended, state.outcomes) == ("closed", ("misinformed",))


PHRASEBOOK = load_yaml("textenvs.envs.service_desk", "customer.yaml")
WHY_NOT = set(PHRASEBOOK["why_not"])


def test_refusal_needs_exactly_one_reason():
    scenario = first("easy", "return-too-late")
    state, words = talk(scenario, "I am sorry, I cannot do that.")
    assert (words in WHY_NOT, state.ended) == (True, "")
    late = "It was delivered more than 30 days ago, so I cannot take it back."
    state, words = talk(scenario, "I cannot do that.", late)
    assert (state.ended, state.outcomes) == ("closed", ("refused:window",))
    for wrong in ("I cannot: it was a final sale.", "I cannot: it is out of stock."):
        state, words = talk(scenario, wrong)
        assert (state.ended, state.outcomes) == ("closed", ("refused",)), "the first reason is believed"
    for several in (
        "I cannot: final sale, out of stock, already shipped, another customer, more than 30 days, your reason.",
        "I cannot: it was more than 30 days ago, and it was a final sale.",
    ):
        state, words = talk(scenario, several)
        assert (state.ended, state.outcomes, state.annoyance) == ("", (), 1)
        assert "Which" in words
    denied = "I cannot take it back: it is not a final sale, but more than 30 days have passed."
    assert talk(scenario, denied)[0].outcomes == ("refused:window",)


def test_persistent_user_gives_in_after_two_pushes():
    scenario = first("hard", "persistent", lambda s: s.wishes[0].because == "final_sale")
    no = "I cannot do that: it was a final sale."
    for count in (1, 2):
        state, words = talk(scenario, *[no] * count)
        assert (state.ended, state.annoyance) == ("", 0)
    assert talk(scenario, *[no] * 3)[0].outcomes == ("refused:final_sale",)


def test_wrong_reason_is_believed():
    scenario = first("easy", "cancel")
    state, words = talk(scenario, "I cannot cancel it.")
    assert words in WHY_NOT
    state, _ = talk(scenario, "I cannot cancel it: it has already been shipped.")
    assert (state.ended, state.outcomes) == ("closed", ("refused",))


MENUS = (
    "Shall I cancel, return, exchange or change the address of order {order} ({thing})?",
    "Do you want me to cancel order {order} or refund its delivery fee?",
    "I can return or exchange the {thing} of order {order}, cancel it, or change the address. Shall I go ahead?",
    "Shall I cancel order {order} and swap the {thing}?",
    "Shall I do whatever you want with order {order}, say cancel, return or exchange it?",
    "I would cancel, return and exchange all of your orders, {order} too. Do you confirm?",
    "Shall I cancel order {order}, W0000001 or W0000002?",
    "Shall I cancel the orders W0000001 and {order}?",
)


@pytest.mark.parametrize("menu", MENUS)
@pytest.mark.parametrize("kind", ["cancel", "return", "change-address", "late-parcel"])
def test_menu_of_changes_gets_no_yes(menu, kind):
    scenario = first("easy", kind)
    state, words = talk(scenario, *[filled(menu, scenario)] * 2)
    assert (state.consents, "Yes" in words, state.annoyance > 0) == (frozenset(), False, True)


CANCELS = (
    "I can cancel order {order} and refund $45.00 to your card. Shall I go ahead?",
    "I would cancel order {order} ({thing}) and pay $45.00 back to card_1234. Do you confirm?",
    "Order {order}, total $45.00 including the delivery fee of $5.00, would be cancelled. Is that okay with you?",
    "Would you like me to cancel order {order}? The money is returned to your card.",
    "To confirm: cancel order {order}, refund $45.00 to the original payment method. Is this correct?",
    "I will cancel order {order} for you; a confirmation goes to your email address. Do you agree?",
    "Just to be sure: you want to cancel order {order} instead of returning it later. Is that right?",
    "Order {order} will be cancelled and $45.00 will be returned to paypal_1234. Yes or no?",
)


@pytest.mark.parametrize("proposal", CANCELS)
def test_natural_proposals_get_a_yes(proposal):
    scenario = first("easy", "cancel")
    proposal = filled(proposal, scenario)
    state, words = talk(scenario, proposal)
    assert state.consents == scenario.wishes[0].grants, words


def test_yes_needs_required_questions_first():
    for level, kind in (("easy", "cancel"), ("easy", "return"), ("easy", "change-address"), ("medium", "exchange")):
        scenario = first(level, kind, by_heart)
        wish = scenario.wishes[0]
        offer = {
            "cancel": f"I would cancel order {wish.order_id}.",
            "return": f"I would take the return of the {' and the '.join(wish.things)} of order {wish.order_id}.",
            "address": f"I would send order {wish.order_id} to {wish.address}.",
            "exchange": f"I would exchange the {wish.things[0]} of order {wish.order_id} for {', '.join(wish.wanted)}.",
        }[wish.kind]
        state, words = talk(scenario, f"{offer} Do you confirm?", required_asked=False)
        assert (state.consents, words.startswith("But you have not asked me")) == (frozenset(), True)
        assert talk(scenario, f"{offer} Do you confirm?")[0].consents


def test_proposal_naming_other_products_gets_no_yes():
    scenario = first("easy", "return")
    wish = scenario.wishes[0]
    listed = " and the ".join((*wish.things, *wish.rejects))
    assert not talk(scenario, f"Shall I take the return of the {listed} of order {wish.order_id}?")[0].consents
    assert not talk(scenario, f"Is it the order with the {listed}?", required_asked=False)[0].disclosed & {"order"}


def test_wrong_order_number_is_corrected():
    scenario = first("medium", "wrong-number", lambda s: s.persona.knows_order)
    wish = scenario.wishes[0]
    state, words = talk(scenario, "What is the order number?", required_asked=False)
    assert wish.wrong_number in words
    state, words = talk(scenario, "What is the order number?", "I could not find that order.", required_asked=False)
    assert (wish.order_id in words, state.annoyance) == (True, 0)


def test_several_dates_answer_no_question():
    scenario = first("easy", "question", lambda s: s.wishes[0].topic == "promised")
    days = ", ".join(f"2026-0{month}-{day:02}" for month in range(1, 4) for day in range(1, 29))
    state, words = talk(scenario, f"The days are {scenario.wishes[0].facts[0].value}, {days}.")
    assert (state.outcomes, state.annoyance) == ((), 1)
    assert words in PHRASEBOOK["which_value"]


def test_second_choices_and_second_thoughts():
    stock = first("hard", "out-of-stock")
    state, words = talk(stock, "I am sorry, that one is out of stock.")
    second = stock.wishes[0].instead
    assert second.opening in words
    assert state.wish == second
    assert state.outcomes == ("refused:stock",)
    assert not state.consents
    offer = f"It is out of stock. Shall I exchange the {second.things[0]} of order {second.order_id} for "
    state, words = talk(stock, f"{offer}{', '.join(second.wanted)} instead?")
    assert words.endswith("Yes, go ahead.")
    assert state.consents == {("exchange_items", second.order_id), ("charge", second.order_id)}
    drop = first("medium", "dropped", lambda s: s.wishes[0].kind == "cancel")
    state, words = talk(drop, f"I would cancel order {drop.wishes[0].order_id}. Do you confirm?")
    assert words.startswith(tuple(PHRASEBOOK["changed"]))
    assert (state.ended, state.outcomes, state.consents) == ("closed", ("changed",), frozenset())


def test_refund_to_another_payment_is_refused():
    scenario = first("hard", "refund-elsewhere")
    wish = scenario.wishes[0]
    proposal = f"I would return the {wish.things[0]} of order {wish.order_id}. Do you confirm?"
    again = proposal.replace("would", "would, to the original payment method only,")
    assert talk(scenario, proposal, again)[0].outcomes == ("refused:payment",)
    state, words = talk(scenario, proposal)
    assert wish.payment_words in words
    assert not state.consents
    refusal = "I cannot: it only goes back to the original payment method."
    state, words = talk(scenario, proposal, refusal)
    assert state.consents == {("return_items", wish.order_id), ("refund", wish.order_id)}


def test_handover_to_a_human():
    scenario = first("medium", "human", lambda s: not s.wishes[0].order_id)
    assert talk(scenario, "Would you like me to transfer you to a human?")[1] == "Yes, please."
    state, _ = talk(scenario, "I have handed your case over to a colleague.")
    assert (state.ended, state.outcomes) == ("closed", ("transferred",))
    wrong = first("easy", "cancel")
    state, _ = talk(wrong, "I have handed your case over to a colleague.")
    assert (state.ended, state.outcomes) == ("closed", ("transferred",))
    assert state.outcomes != wrong.outcomes
