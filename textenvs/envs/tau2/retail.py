"""The retail domain: orders of a shop that are cancelled, changed, exchanged and returned.

Each function does what tau2-bench's does, in the same order where a refusal may come in between, with its
peculiarities: the resulting database must be the same.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from .database import Record, Side, calculated, refusal


class Retail(Side):
    """The assistant's side; the user has none."""

    def calculate(self, expression: str) -> str:
        return calculated(expression)

    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        identity = (first_name.lower(), last_name.lower(), zip)
        for user_id, user in self.db.all("users"):
            name = user["name"]
            if (name["first_name"].lower(), name["last_name"].lower(), user["address"]["zip"]) == identity:
                return user_id
        raise refusal("User not found")

    def find_user_id_by_email(self, email: str) -> str:
        for user_id, user in self.db.all("users"):
            if user["email"].lower() == email.lower():
                return user_id
        raise refusal("User not found")

    def get_order_details(self, order_id: str) -> Record:
        return self._record("orders", order_id, "Order not found")

    def get_product_details(self, product_id: str) -> Record:
        return self._record("products", product_id, "Product not found")

    def get_item_details(self, item_id: str) -> Record:
        for _, product in self.db.all("products"):
            if item_id in product["variants"]:
                return product["variants"][item_id]  # type: ignore[no-any-return]
        raise refusal("Item not found")

    def get_user_details(self, user_id: str) -> Record:
        return self._record("users", user_id, "User not found")

    def list_all_product_types(self) -> str:
        names = {product["name"]: product["product_id"] for _, product in self.db.all("products")}
        return json.dumps(names, sort_keys=True)

    def transfer_to_human_agents(self, summary: str) -> str:
        return self.TRANSFERRED

    def cancel_pending_order(self, order_id: str, reason: str) -> Record:
        order = self.get_order_details(order_id)
        if order["status"] != "pending":
            raise refusal("Non-pending order cannot be cancelled")
        if reason not in {"no longer needed", "ordered by mistake"}:
            raise refusal("Invalid reason")
        refunds = []
        for payment in order["payment_history"]:
            refunds.append({**payment, "transaction_type": "refund"})
            self._payment(order["user_id"], payment["payment_method_id"])
            self._to_gift_card(order["user_id"], payment["payment_method_id"], payment["amount"])
        order = self.db.edit("orders", order_id)
        order.update(status="cancelled", cancel_reason=reason)
        order["payment_history"] += refunds
        return order

    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        order = self.get_order_details(order_id)
        if order["status"] != "delivered":
            raise refusal("Non-delivered order cannot be exchanged")
        self._check_items(order, item_ids)
        difference, _ = self._swaps(order, item_ids, new_item_ids, other=False)
        difference = round(difference, 2)
        self._check_balance(order["user_id"], payment_method_id, difference)
        order = self.db.edit("orders", order_id)
        order.update(
            status="exchange requested",
            exchange_items=sorted(item_ids),
            exchange_new_items=sorted(new_item_ids),
            exchange_payment_method_id=payment_method_id,
            exchange_price_difference=difference,
        )
        return order

    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        self._pending(order_id)
        address = _address(address1, address2, city, state, country, zip)
        order = self.db.edit("orders", order_id)
        order["address"] = address
        return order

    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Record:
        order = self.get_order_details(order_id)
        if order["status"] != "pending":
            raise refusal("Non-pending order cannot be modified")
        self._check_items(order, item_ids)
        difference, variant = self._swaps(order, item_ids, new_item_ids, other=True)
        self._check_balance(order["user_id"], payment_method_id, difference)
        order = self.db.edit("orders", order_id)
        kind = "payment" if difference > 0 else "refund"
        order["payment_history"].append(
            {"transaction_type": kind, "amount": abs(difference), "payment_method_id": payment_method_id}
        )
        self._to_gift_card(order["user_id"], payment_method_id, -difference)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = _item(order, item_id)
            # tau2 gives every new item the price and the options of the last one.
            item.update(item_id=new_item_id, price=variant["price"], options=variant["options"])
        order["status"] = "pending (item modified)"
        return order

    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Record:
        order = self._pending(order_id)
        method = self._payment(order["user_id"], payment_method_id)
        history = order["payment_history"]
        if len(history) != 1 or history[0]["transaction_type"] != "payment":
            raise refusal("There should be exactly one payment for a pending order")
        before, amount = history[0]["payment_method_id"], history[0]["amount"]
        if before == payment_method_id:
            raise refusal("The new payment method should be different from the current one")
        if method["source"] == "gift_card" and method["balance"] < amount:
            raise refusal("Insufficient gift card balance to pay for the order")
        order = self.db.edit("orders", order_id)
        for kind, used in (("payment", payment_method_id), ("refund", before)):
            order["payment_history"].append({"transaction_type": kind, "amount": amount, "payment_method_id": used})
        self._to_gift_card(order["user_id"], payment_method_id, -amount)
        self._payment(order["user_id"], before)
        self._to_gift_card(order["user_id"], before, amount)
        return order

    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Record:
        self.get_user_details(user_id)
        address = _address(address1, address2, city, state, country, zip)
        user = self.db.edit("users", user_id)
        user["address"] = address
        return user

    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> Record:
        order = self.get_order_details(order_id)
        if order["status"] != "delivered":
            raise refusal("Non-delivered order cannot be returned")
        method = self._payment(order["user_id"], payment_method_id)
        if method["source"] != "gift_card" and payment_method_id != order["payment_history"][0]["payment_method_id"]:
            raise refusal("Payment method should be the original payment method")
        self._check_items(order, item_ids)
        order = self.db.edit("orders", order_id)
        order.update(
            status="return requested", return_items=sorted(item_ids), return_payment_method_id=payment_method_id
        )
        return order

    def _pending(self, order_id: str) -> Record:
        order = self.get_order_details(order_id)
        if "pending" not in order["status"]:
            raise refusal("Non-pending order cannot be modified")
        return order

    def _payment(self, user_id: str, payment_method_id: str) -> Record:
        methods = self.get_user_details(user_id)["payment_methods"]
        if payment_method_id not in methods:
            raise refusal("Payment method not found")
        return methods[payment_method_id]  # type: ignore[no-any-return]

    def _check_balance(self, user_id: str, payment_method_id: str, difference: float) -> None:
        method = self._payment(user_id, payment_method_id)
        if method["source"] == "gift_card" and method["balance"] < difference:
            raise refusal("Insufficient gift card balance to pay for the price difference")

    def _to_gift_card(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Add to the balance if it is a gift card; other methods have no balance in the database."""
        if self._payment(user_id, payment_method_id)["source"] == "gift_card":
            card = self.db.edit("users", user_id)["payment_methods"][payment_method_id]
            card["balance"] = round(card["balance"] + amount, 2)

    def _check_items(self, order: Record, item_ids: Sequence[str]) -> None:
        bought = [item["item_id"] for item in order["items"]]
        for item_id in item_ids:
            if item_ids.count(item_id) > bought.count(item_id):
                raise refusal(f"{item_id} not found in the order")

    def _swaps(
        self, order: Record, item_ids: Sequence[str], new_item_ids: Sequence[str], *, other: bool
    ) -> tuple[float, Record]:
        """Return the price difference and the last new item; ``other``: whether each must differ from the old one."""
        if len(item_ids) != len(new_item_ids):
            raise refusal("The number of items to be exchanged should match")
        difference: float = 0
        variant: Record = {}
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            if other and item_id == new_item_id:
                raise refusal("The new item id should be different from the old item id")
            item = _item(order, item_id)
            variants = self.get_product_details(item["product_id"])["variants"]
            if new_item_id not in variants:
                raise refusal("Variant not found")
            variant = variants[new_item_id]
            if not variant["available"]:
                raise refusal(f"New item {new_item_id} not found or available")
            difference += variant["price"] - item["price"]
        return difference, variant


def _item(order: Record, item_id: str) -> Record:
    match = next((item for item in order["items"] if item["item_id"] == item_id), None)
    if match is None:
        raise refusal(f"Item {item_id} not found")
    return match  # type: ignore[no-any-return]


def _address(address1: str, address2: str, city: str, state: str, country: str, zip: str) -> Record:
    parts = {"address1": address1, "address2": address2, "city": city, "country": country, "state": state, "zip": zip}
    if not all(isinstance(part, str) for part in parts.values()):
        raise refusal("Each part of an address is a string")
    return parts
