"""The telecom domain, the assistant's side: customers, their lines, plans and bills. The phone is the user's side.

The day is 25 February 2025, as in tau2-bench.
"""

from __future__ import annotations

import hashlib
from datetime import date, timedelta
from typing import Any

from .database import Record, Side, refusal

_TODAY = date(2025, 2, 25)
_LAST_MONTH = date(2025, 1, 1)
_NEXT_MONTH = date(2025, 3, 1)
# The tables by the first letter of an id.
_KINDS = {"L": "lines", "D": "devices", "B": "bills", "C": "customers", "P": "plans"}


class Telecom(Side):
    """The assistant's side."""

    def get_customer_by_phone(self, phone_number: str) -> Record:
        for _, customer in self.db.all("customers"):
            lines = (self._get("lines", line_id)["phone_number"] for line_id in customer["line_ids"])
            if customer["phone_number"] == phone_number or phone_number in lines:
                return customer
        raise refusal(f"Customer with phone number {phone_number} not found")

    def get_customer_by_id(self, customer_id: str) -> Record:
        return self._get("customers", customer_id)

    def get_customer_by_name(self, full_name: str, dob: str) -> list[Record]:
        name = full_name.lower()
        customers = (customer for _, customer in self.db.all("customers"))
        return [
            customer
            for customer in customers
            if customer["full_name"].lower() == name and customer["date_of_birth"] == dob
        ]

    def get_details_by_id(self, id: str) -> Record:
        if id[:1] not in _KINDS:
            raise refusal(f"Unknown ID format or type: {id}")
        return self._get(_KINDS[id[0]], id)

    def get_bills_for_customer(self, customer_id: str, limit: int = 12) -> list[Record]:
        bills = [self._get("bills", bill_id) for bill_id in self._get("customers", customer_id)["bill_ids"]]
        return sorted(bills, key=lambda bill: bill["issue_date"], reverse=True)[:limit]

    def get_data_usage(self, customer_id: str, line_id: str) -> Record:
        line = self._line(customer_id, line_id)
        return {
            "line_id": line_id,
            "data_used_gb": line["data_used_gb"],
            "data_limit_gb": self._get("plans", line["plan_id"])["data_limit_gb"],
            "data_refueling_gb": line["data_refueling_gb"],
            "cycle_end_date": (_NEXT_MONTH - timedelta(days=1)).isoformat(),
        }

    def transfer_to_human_agents(self, summary: str) -> str:
        return self.TRANSFERRED

    def suspend_line(self, customer_id: str, line_id: str, reason: str) -> Record:
        if self._line(customer_id, line_id)["status"] != "Active":
            raise refusal("Line must be active to suspend")
        line = self.db.edit("lines", line_id)
        line.update(status="Suspended", suspension_start_date=_TODAY.isoformat())
        return {"message": "Line suspended. A holding fee of $5 a month applies.", "line": line}

    def resume_line(self, customer_id: str, line_id: str) -> Record:
        if self._line(customer_id, line_id)["status"] not in ("Suspended", "Pending Activation"):
            raise refusal("Line must be suspended to resume")
        line = self.db.edit("lines", line_id)
        line.update(status="Active", suspension_start_date=None)
        return {"message": "Line resumed.", "line": line}

    def send_payment_request(self, customer_id: str, bill_id: str) -> str:
        customer = self._get("customers", customer_id)
        if self.bills_awaiting_payment(customer):
            raise refusal("A bill is already awaiting payment for this customer")
        if bill_id not in customer["bill_ids"]:
            raise refusal(f"Bill {bill_id} not found for customer {customer_id}")
        self._get("bills", bill_id)
        self.db.edit("bills", bill_id)["status"] = "Awaiting Payment"
        return f"Payment request sent to the customer for bill {bill_id}"

    def enable_roaming(self, customer_id: str, line_id: str) -> str:
        return self._roaming(customer_id, line_id, True)

    def disable_roaming(self, customer_id: str, line_id: str) -> str:
        return self._roaming(customer_id, line_id, False)

    def refuel_data(self, customer_id: str, line_id: str, gb_amount: float) -> Record:
        line = self._line(customer_id, line_id)
        if gb_amount <= 0:
            raise refusal("Refuel amount must be positive")
        rate = self._get("plans", line["plan_id"])["data_refueling_price_per_gb"]
        line = self.db.edit("lines", line_id)
        line["data_refueling_gb"] += gb_amount
        charge = gb_amount * rate
        self._charge(customer_id, charge, f"Data refueling: {gb_amount} GB at ${rate}/GB")
        message = f"{gb_amount} GB added to line {line_id} for ${charge:.2f}"
        return {"message": message, "new_data_refueling_gb": line["data_refueling_gb"], "charge": charge}

    # The actions that tasks begin with, and their assertions.

    def set_data_usage(self, customer_id: str, line_id: str, data_used_gb: float) -> None:
        self._line(customer_id, line_id)
        self.db.edit("lines", line_id)["data_used_gb"] = data_used_gb

    def suspend_line_for_overdue_bill(
        self, customer_id: str, line_id: str, new_bill_id: str, contract_ended: bool
    ) -> None:
        line = self._get("lines", line_id)
        if line["status"] != "Active":
            raise refusal("Line must be active to suspend for unpaid bill")
        price = self._get("plans", line["plan_id"])["price_per_month"]
        bills = self._get("customers", customer_id)["bill_ids"]
        if any(self._get("bills", bill_id)["status"] == "Overdue" for bill_id in bills):
            raise refusal("Customer already has an overdue bill")
        end = _TODAY.replace(day=1) - timedelta(days=1)
        bill = self._bill(new_bill_id, customer_id, _LAST_MONTH, end, "Overdue")
        _add(bill, f"Charge for line {line_id}", price)
        self.db.put("bills", new_bill_id, bill)
        self.db.edit("customers", customer_id)["bill_ids"].append(new_bill_id)
        line = self.db.edit("lines", line_id)
        line.update(status="Suspended", suspension_start_date=_TODAY.isoformat())
        if contract_ended:
            line["contract_end_date"] = end.isoformat()

    def bills_awaiting_payment(self, customer: Record) -> list[Record]:
        bills = (self._get("bills", bill_id) for bill_id in customer["bill_ids"])
        return [bill for bill in bills if bill["status"] == "Awaiting Payment"]

    def assert_data_refueling_amount(self, customer_id: str, line_id: str, expected_amount: float) -> bool:
        return bool(abs(self._line(customer_id, line_id)["data_refueling_gb"] - expected_amount) < 1e-6)

    def assert_line_status(self, customer_id: str, line_id: str, expected_status: str) -> bool:
        return bool(self._line(customer_id, line_id)["status"] == expected_status)

    def assert_overdue_bill_exists(self, customer_id: str, overdue_bill_id: str) -> bool:
        owned = overdue_bill_id in self._get("customers", customer_id)["bill_ids"]
        if not owned or self._get("bills", overdue_bill_id)["status"] != "Overdue":
            raise refusal(f"Bill {overdue_bill_id} is not an overdue bill of customer {customer_id}")
        return True

    def assert_no_overdue_bill(self, overdue_bill_id: str) -> bool:
        bill = self.db.get("bills", overdue_bill_id)
        return bill is None or bill["status"] == "Paid"

    def _get(self, table: str, key: str) -> Record:
        return self._record(table, key, f"{table[:-1].capitalize()} with ID {key} not found")

    def _line(self, customer_id: str, line_id: str) -> Record:
        if line_id not in self._get("customers", customer_id)["line_ids"]:
            raise refusal(f"Line {line_id} not found for customer {customer_id}")
        return self._get("lines", line_id)

    def _roaming(self, customer_id: str, line_id: str, on: bool) -> str:
        word = "enabled" if on else "disabled"
        if self._line(customer_id, line_id)["roaming_enabled"] == on:
            return f"Roaming was already {word}"
        self.db.edit("lines", line_id)["roaming_enabled"] = on
        return f"Roaming {word}"

    def _charge(self, customer_id: str, amount: float, description: str) -> None:
        """Put an amount on the customer's draft bill, which is created where there is none."""
        bills = self._get("customers", customer_id)["bill_ids"]
        draft = next((bill_id for bill_id in bills if self._get("bills", bill_id)["status"] == "Draft"), None)
        if draft is None:
            # tau2 draws the id at random; here it is a function of the customer and the charge.
            draft = "B" + hashlib.sha256(f"{customer_id} {description} {len(bills)}".encode()).hexdigest()[:8]
            end = date(2025, 4, 1) - timedelta(days=1)
            self.db.put("bills", draft, self._bill(draft, customer_id, _NEXT_MONTH, end, "Draft"))
            self.db.edit("customers", customer_id)["bill_ids"].append(draft)
        _add(self.db.edit("bills", draft), description, amount)

    def _bill(self, bill_id: str, customer_id: str, start: date, end: date, status: str) -> dict[str, Any]:
        return {
            "bill_id": bill_id,
            "customer_id": customer_id,
            "period_start": start.isoformat(),
            "period_end": end.isoformat(),
            "issue_date": start.isoformat(),
            "total_due": 0.0,
            "due_date": (start + timedelta(days=14)).isoformat(),
            "line_items": [],
            "status": status,
        }


def _add(bill: Record, description: str, amount: float) -> None:
    kind = "Credit" if amount < 0 else "Charge"
    item = {"description": description, "amount": amount, "date": _TODAY.isoformat(), "item_type": kind}
    bill.setdefault("line_items", []).append(item)
    bill["total_due"] += amount
