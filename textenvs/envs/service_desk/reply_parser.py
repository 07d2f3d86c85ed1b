"""What the simulated user understands of the assistant's words: keyword rules, sentence by sentence.

A sentence that asks (a question, or "please tell me ...") can ask for something or for a yes. A sentence that states
can say that something is done, that it cannot be done and why, or that a colleague takes over. Sentences about what
would happen ("once it is cancelled", "if you like") state nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date

from .database import Record

#: A reply longer than this is not read: nobody reads it, and no rule should be tried on a megabyte.
MAX_CHARS = 4000
#: With more amounts of money than this in one reply, none of them has been told.
MAX_AMOUNTS = 12


@dataclass(frozen=True, slots=True)
class Heard(Record):
    """One reply as the user understood it.

    Args:
        asks: What is asked for: ``email``, ``name``, ``zip``, ``identity``, ``order``, ``items``, ``reason``,
            ``address``, ``variant``, ``payment``, ``wish``.
        confirm: A yes is asked for.
        guess: The assistant asks whether it is right about something: "Is it the order with the lamp?"
        done: Something is said to be done.
        refused: Something is said not to be possible.
        not_found: The assistant did not find somebody or something.
        reasons: Why it is not possible, as far as reasons are named.
        transferred: A human colleague takes over.
        waiting: The user is asked to wait.
        more: The user is asked whether there is anything else, or is seen off.
    """

    asks: frozenset[str] = frozenset()
    confirm: bool = False
    guess: bool = False
    done: bool = False
    refused: bool = False
    not_found: bool = False
    reasons: frozenset[str] = frozenset()
    transferred: bool = False
    waiting: bool = False
    more: bool = False

    @property
    def nothing(self) -> bool:
        """Whether no rule found anything."""
        return self == Heard()


def _any(*patterns: str) -> re.Pattern[str]:
    return re.compile("|".join(patterns))


_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+|;\s")
_ASKING = _any(
    r"\?",
    r"\b(?:please|could you|can you|would you|may i|i(?:'ll| will)? (?:also |just |still )?(?:need|require))\b",
    r"\b(?:provide|tell me|let me know|share|give me|send me|confirm|specify|reply|type|i would need|i'd need)\b",
)
_CONDITIONAL = re.compile(r"^(?:\W*)(?:once|when|if|after|before|until|as soon|should you|in case|whenever|unless)\b")
_NOT_YET = re.compile(r"^(?:\W*)(?:once|after|before|until|as soon)\b")
_RULE = re.compile(r"\bonly (?:if|when)\b|\b(?:if|unless|whenever)\b")
_NEGATED = _any(r"\b(?:not|cannot|never|unable|neither|nor)\b", r"n't\b")

_ASKS: Mapping[str, re.Pattern[str]] = {
    "email": _any(r"(?<!check your )(?<!by )(?<!via )\be-?mail\b"),
    "name": _any(
        r"\b(?:full|first|last|your|the) names?\b(?! of the (?:item|product))", r"\bname and\b", r"\bwho are you\b"
    ),
    "zip": _any(r"\bzip", r"\bpostal code\b", r"\bpost ?code\b"),
    "identity": _any(
        r"\bidentity\b",
        r"\bidentify you",
        r"\bverify (?:who )?you",
        r"\b(?:customer|account|user) (?:id|number|details)\b",
    ),
    "order": _any(
        r"\border(?:'s)? (?:number|id|no\b|#|details)",
        r"\b(?:which|what) (?:of your )?orders?\b",
        r"\b(?:number|id) of (?:the|your) order\b",
    ),
    "items": _any(
        r"\b(?:which|what) (?:of (?:the|these|those|your) )?(?:items?|products?|articles?|things?|ones?)\b",
        r"\b(?:which|what) of (?:them|these|those)\b",
        r"\b(?:item|product)(?:\(s\)|s)? (?:that )?(?:you (?:want|would like|wish)|in question)",
        r"\b(?:item|product) (?:id|name|number)s?\b",
        r"\bwhat (?:do|would) you (?:want|like) to (?:return|send|exchange)",
    ),
    "reason": _any(r"\bwhy\b", r"\breason\b", r"\bwhat(?:'s| is| was) (?:wrong|the (?:problem|issue|matter))\b"),
    "address": _any(r"(?<!mail )(?<!mail-)\baddress\b", r"\bwhere (?:should|shall|do|would|to)\b"),
    "variant": _any(
        r"\b(?:which|what) (?:other |new |kind of |different )?"
        r"(?:colou?r|size|variant|option|version|model|volume|thickness|storage|layout|fuel|material|language|replacement)",
        r"\bwhat (?:do|would|should)[^?]*\binstead\b",
        r"\bwhich[^?]*\binstead\b",
        r"\bwould you prefer\b",
        r"\b(?:exchange|swap|replace)\b[^?]*\b(?:for|with|by)\W*$",
        r"\bwhich (?:one )?would you like\b",
        r"\bfor (?:what|which)\b",
        r"\bnew (?:variant|item|option|size|colou?r)s?\b[^?]*\b(?:would|do|should) you\b",
        r"\bwhat (?:do|would|should)[^?]*\b(?:exchange|swap|replace)\w* (?:it|them|the [\w ]+) (?:for|with|by)\b",
    ),
    "payment": _any(r"\b(?:which|what|how|where)\b[^?]*\b(?:payment|card|paypal|money|refund(?:ed)?)\b"),
    "wish": _any(
        r"\bhow (?:can|may|could|might) (?:i|we) (?:help|assist|be)\b",
        r"\bwhat (?:can|could|may) (?:i|we) (?:do|help)\b",
        r"\bwhat (?:would|do) you (?:like|want|need|wish)\b(?! to (?:return|send|exchange))",
        r"\bhow (?:would|should|shall|do) (?:you|i|we)\b[^?]*\bproceed\b",
        r"\bmore (?:details|information)\b",
        r"\b(?:cancel|return|exchange|refund)\b[^?]*\bor\b[^?]*\b(?:cancel|return|exchange|refund)\b",
        r"\btell me more\b",
        r"\bdescribe\b",
        r"\bwhat(?:'s| is) (?:it|this) about\b",
        r"\bwhat exactly\b",
    ),
}

_CONFIRM = _any(
    r"\bconfirm\b(?! (?:me )?(?:your|the) (?:full |first |account |e-?)?(?:mail|name|zip|identity|order (?:number|id)|"
    r"shipping address|address|account|postal))",
    r"\bproceed\b",
    r"\bgo ahead\b",
    r"\b(?:shall|should|may|can) (?:i|we) (?:now )?(?:cancel|return|refund|exchange|change|"
    r"swap|replace|update|do|go|proceed|continue|register|transfer|hand|issue|process|make|start|set|connect)\b",
    r"\b(?:shall|should) i\?",
    r"^\W*(?:(?:so|and|then|okay|ok)\b\W*)?(?:do|would) you (?:want|like) to (?:cancel|return|exchange|change|swap)\b",
    r"\b(?:do|would) you (?:want|like) (?:me|us) to\b",
    r"\bwould you like to (?:proceed|continue|go|be transferred)\b",
    r"\b(?:is|are|does|sounds?) (?:that|this|it|these|everything|all)(?: all| look| sound)* "
    r"(?:correct|right|ok|okay|fine|good|alright)\b",
    r"\byes\b\W{1,6}(?:or )?\W*no\b",
    r"\bdo you agree\b",
    r"\b(?:okay|ok|fine|happy|all right|alright) with (?:that|this|you)\b",
    r"\b(?:reply|type|say|answer) (?:with )?\W?yes\b",
)
_GUESS = _any(
    r"\b(?:is|was) (?:it|this|that) (?:about |for )?(?:the|your|order)\b",
    r"\b(?:do|did) you mean\b",
    r"\bare you (?:referring|talking|asking)\b",
    r"\b(?:is|are) (?:that|this|these|those) the (?:one|right|order|item)",
)
_CHANGED = (
    r"(?:cancel+ed|returned|refunded|exchanged|swapped|replaced|changed|updated|registered|processed|completed|issued|"
    r"arranged|set up|booked|credited|initiated|submitted)"
)
_DONE = _any(
    rf"\b(?:has|have|had|was|were|is|are)\b(?: (?!be)\w+)? ?(?:been |now |already |just |successfully )*{_CHANGED}\b",
    rf"(?:'s|'ve)\b (?:been |now |already |just |successfully )*{_CHANGED}\b",
    rf"\b(?:i|we) (?:now |just |already |successfully )*{_CHANGED}\b",
    rf"\b{_CHANGED} successfully\b",
    rf"\bsuccessfully {_CHANGED}\b",
    r"^\W*(?:done|all done|it is done|it's done)\b",
    r"\ball set\b",
    r"\b(?:is|are) (?:now )?(?:done|complete|on its way back)\b",
)
_REFUSED = _any(
    r"\bcan(?:no|')t\b",
    r"\bcan not\b",
    r"\bcould(?: not|n't)\b",
    r"\bwon't be\b",
    r"\bwill not be\b",
    r"\bunable\b",
    r"\bnot (?:\w+ )?(?:able|possible|allowed|permitted|eligible|accepted|authori[sz]ed|available|in stock)\b",
    r"\bnot (?:\w+ )?(?:entitled|due|covered|valid)\b",
    r"\bno (?:refund|return|exchange|cancellation)s?\b",
    r"\bnot (?:\w+ )?(?:returnable|refundable|cancell?able|exchangeable)\b",
    r"\b(?:isn't|aren't|wasn't) (?:able|possible|allowed|permitted|eligible|returnable|refundable|available)\b",
    r"\b(?:ineligible|impossible)\b",
    r"\bnon-?(?:returnable|refundable)\b",
    r"\b(?:can|could) no longer\b",
    r"\bno longer (?:be|possible|eligible|available|able|allowed)\b",
    r"\b(?:do|does)(?: not|n't) (?:allow|permit|accept|offer|qualify|match|apply|meet)\b",
    r"\b(?:must|have to|need to) (?:decline|refuse)\b",
    r"\bunfortunately\b",
    r"\bsorry,? but\b",
    r"\bi regret\b",
    r"\bagainst (?:our|the|my) (?:policy|rules)\b",
    r"\btoo late\b",
    r"\bonly\b.*\b(?:can|may|possible)\b",
    r"\bcan only\b",
    r"\bonly (?:if|when)\b",
    r"\bmay only\b",
    r"\bout of stock\b",
    r"\bsold out\b",
)
_NOT_FOUND = _any(
    r"(?:\bcan(?:no|')t|\bcan not|\b(?:could|did|do)(?: not|n't)|\bunable to|(?:\bnot|n't) able to) "
    r"(?:\w+ ){0,2}?(?:find|locate|verify|identify|confirm|match|see)\b",
    r"\bno (?:customer|account|match(?:ing)?|order|record)s?\b",
    r"\b(?:not|nothing) found\b",
    r"\bdoes(?: not|n't) match\b",
)
_TRANSFERRED = _any(
    r"\b(?:transferr(?:ed|ing)|transfer you|handed|handing|hand (?:you|this|your)|connect(?:ed|ing) you|connect you|"
    r"escalat(?:ed|ing)|pass(?:ed|ing) (?:you|this|your))\b.*"
    r"\b(?:human|agents?|colleagues?|specialists?|team|persons?|representatives?|supervisors?)\b",
    r"\b(?:human|colleagues?|specialists?|agents?|representatives?|team)\b(?: \w+){0,2} (?:will|is going to|shall)\b",
)
_OFFERED = re.compile(r"\b(?:can|could|may|might|would)\b")
_WAITING = _any(
    r"\b(?:one|just a|a) moment\b",
    r"\blet me (?:check|look|see|find|verify|pull)\b",
    r"\b(?:hold on|please wait|bear with)\b",
    r"\bi(?:'ll| will) (?:check|look|find|verify|pull)\b",
)
_MORE = _any(
    r"\banything else\b",
    r"\bsomething else\b",
    r"\belse (?:can|may|could) i\b",
    r"\bfurther (?:help|assist|question)",
    r"\b(?:goodbye|bye)\b",
    r"\bhave a (?:nice|great|good|lovely|wonderful|pleasant)\b",
    r"\bwelcome\b",
)
_REASONS: Mapping[str, re.Pattern[str]] = {
    "shipped": _any(
        r"\b(?:already|has|been|was|is) (?:\w+ )?(?:shipped|sent|dispatched|delivered)\b",
        r"\bon (?:its|the) way\b",
        r"\bin transit\b",
        r"\bnot pending\b",
        r"\bno longer pending\b",
        r"\bonly (?:\w+ ){0,3}pending\b",
        r"\bleft (?:our|the) warehouse\b",
        r"\b(?:status|it) is (?:\W*)(?:shipped|delivered)\b",
    ),
    "not_delivered": _any(
        r"\bnot (?:yet )?(?:been )?(?:delivered|arrived)\b",
        r"\b(?:hasn't|has not|have not) (?:\w+ )?(?:arrived|delivered)\b",
        r"\bonly (?:\w+ ){0,3}delivered\b",
        r"\bstill (?:pending|on its way|in transit)\b",
        r"\bin transit\b",
        r"\bonce it (?:is|has)\b",
    ),
    "window": _any(
        r"\b(?:30|thirty)\b\W?days?\b",
        r"\bwindow\b",
        r"\btoo late\b",
        r"\btoo long ago\b",
        r"\bdeadline\b",
        r"\breturn period\b",
    ),
    "final_sale": _any(r"\bfinal[ -]sale"),
    "cancel_reason": _any(r"\breason\b", r"\bno longer needed\b", r"\bmistake\b", r"\bcheaper\b", r"\bbetter price\b"),
    "payment": _any(
        r"\boriginal (?:payment|card|method|form|paypal)\b",
        r"\bsame (?:payment|card|method)\b",
        r"\bpayment (?:method|card)\b",
        r"\b(?:you )?paid (?:with|by|for)\b",
        r"\bused (?:to pay|for (?:the|this) (?:order|payment))\b",
    ),
    "stock": _any(r"\bstock\b", r"\bsold out\b", r"\bnot available\b", r"\bunavailable\b", r"\bisn't available\b"),
    "on_time": _any(
        r"\bon time\b",
        r"\bin time\b",
        r"\bnot (?:\w+ ){0,3}late\b",
        r"\bwithin (?:\w+ ){0,4}promised\b",
        r"\b(?:3|three) days\b",
        r"\bpromised (?:day|date|delivery)\b",
    ),
    "not_yours": _any(
        r"\b(?:another|different|other) (?:customer|person|account|user)",
        r"\b(?:someone|somebody|anyone|anybody) else\b",
        r"\bnot (?:\w+ ){0,3}(?:yours|your (?:own )?(?:order|account))\b",
        r"\b(?:does(?: not|n't)|not) belong\b",
        r"\b(?:under|in|on|to|with) your (?:own )?account\b",
        r"\byour own\b",
        r"\bprivacy\b",
        r"\baccount (?:holder|owner)\b",
    ),
    "identity": _any(
        r"\bverif",
        r"\bidenti",
        r"\bno (?:customer|account|match)",
        r"\b(?:not|couldn't|can't) (?:\w+ )?(?:find|found|match)",
        r"\bmatch",
    ),
}
_AMOUNT = re.compile(r"(?<![\w.,-])\$?\s?(\d{1,3}(?:,\d{3})+|\d+)(?:\.(\d{1,2}))?(?![\w]|[.,]\d)")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def plain(text: str) -> str:
    """Lower case, without Markdown's marks, with straight apostrophes."""
    return text.replace("\u2019", "'").replace("*", "").replace("`", "").replace("_", " ").casefold()


def understand(text: str) -> Heard:
    """What a reply of at most :data:`MAX_CHARS` characters says, as far as the rules go."""
    asks: set[str] = set()
    reasons: set[str] = set()
    confirm = guess = done = refused = not_found = transferred = waiting = more = False
    for sentence in _SENTENCE_END.split(plain(text)):
        asking = _ASKING.search(sentence) is not None
        conditional = _CONDITIONAL.search(sentence) is not None
        more = more or _MORE.search(sentence) is not None
        waiting = waiting or _WAITING.search(sentence) is not None
        reasons.update(name for name, pattern in _REASONS.items() if pattern.search(sentence))
        lost = _NOT_FOUND.search(sentence) is not None
        not_found = not_found or lost
        if asking:
            wanted = {name for name, pattern in _ASKS.items() if pattern.search(sentence)}
            asks |= wanted
            # "What would you like me to do?" asks for no yes.
            yes = "wish" not in wanted and _CONFIRM.search(sentence) is not None and not _NOT_YET.search(sentence)
            confirm = confirm or yes
            guess = guess or _GUESS.search(sentence) is not None
        # "I cannot cancel it, could you ...?" refuses, though it asks; "Can't you ...?" is nobody's way to refuse.
        no = not conditional and _REFUSED.search(sentence) is not None
        refused = refused or (no and not sentence.rstrip().endswith("?")) or (lost and not conditional)
        if asking or conditional or _NEGATED.search(sentence) or _RULE.search(sentence):
            continue
        done = done or _DONE.search(sentence) is not None
        transferred = transferred or (_TRANSFERRED.search(sentence) is not None and not _OFFERED.search(sentence))
    if "email" in asks:
        asks.discard("address")  # "your email address"
    if "zip" in asks or "email" in asks:
        asks.discard("identity")
    return Heard(
        asks=frozenset(asks),
        confirm=confirm,
        guess=guess,
        done=done,
        refused=refused,
        not_found=not_found,
        reasons=frozenset(reasons),
        transferred=transferred,
        waiting=waiting,
        more=more,
    )


def tells(text: str, kind: str, value: str, decoys: Collection[str] = ()) -> bool:
    """Whether ``text`` states a fact: an amount in cents, an ISO date, or a text."""
    words = plain(text)
    if any(mentions(words, decoy) for decoy in decoys):
        return False
    if kind == "amount":
        said = amounts(words)
        return len(said) <= MAX_AMOUNTS and int(value) in said
    if kind == "date":
        return _says_date(words, date.fromisoformat(value))
    return mentions(words, value)


def amounts(text: str) -> frozenset[int]:
    """All numbers of a text that may be money, in cents: ``$1,234.5`` is 123450."""
    found = set()
    for whole, part in _AMOUNT.findall(text):
        found.add(int(whole.replace(",", "")[:12]) * 100 + int((part + "00")[:2]))
    return frozenset(found)


def mentions(text: str, phrase: str) -> bool:
    """Whether ``text`` has ``phrase`` as whole words, whatever its case."""
    words = r"[\s-]*".join(re.escape(word) for word in plain(phrase).split())  # "0.5 L" is also "0.5L"
    return bool(words) and re.search(rf"(?<!\w){words}(?:e?s)?(?!\w)", plain(text)) is not None


def _says_date(words: str, day: date) -> bool:
    month = _MONTHS[day.month - 1]
    number = rf"0?{day.day}(?:st|nd|rd|th)?"
    return _any(
        rf"\b{day.isoformat()}\b",
        rf"\b{month}[a-z]*\.? (?:the )?{number}\b",
        rf"\b{number} (?:of )?{month}",
        rf"\b0?{day.month}/0?{day.day}(?:/(?:{day.year}|{day.year % 100}))?\b",
        rf"\b0?{day.day}\.0?{day.month}\.(?:{day.year}|{day.year % 100})?\b",
    ).search(words) is not None  # fmt: skip
