"""The airline domain: reservations that are booked, changed and cancelled.

As in tau2-bench, to the letter: the day is 15 May 2024, a cancelled reservation frees no seats, and an episode can make
three reservations and three certificates a user at most.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .database import Record, Side, calculated, refusal

_NOW = "2024-05-15T15:00:00"
_RESERVATIONS = ("HATHAT", "HATHAU", "HATHAV")
_CERTIFICATES = ("certificate_3221322", "certificate_3221323", "certificate_3221324")
_AIRPORTS: Mapping[str, str] = {
    "SFO": "San Francisco",
    "JFK": "New York",
    "LAX": "Los Angeles",
    "ORD": "Chicago",
    "DFW": "Dallas",
    "DEN": "Denver",
    "SEA": "Seattle",
    "ATL": "Atlanta",
    "MIA": "Miami",
    "BOS": "Boston",
    "PHX": "Phoenix",
    "IAH": "Houston",
    "LAS": "Las Vegas",
    "MCO": "Orlando",
    "EWR": "Newark",
    "CLT": "Charlotte",
    "MSP": "Minneapolis",
    "DTW": "Detroit",
    "PHL": "Philadelphia",
    "LGA": "LaGuardia",
}
_FLIGHT = ("flight_number", "date")
_PASSENGER = ("first_name", "last_name", "dob")
_PAYMENT = ("payment_id", "amount")


class Airline(Side):
    """The assistant's side; the user has none."""

    def calculate(self, expression: str) -> str:
        return calculated(expression)

    def get_user_details(self, user_id: str) -> Record:
        return self._record("users", user_id, f"User {user_id} not found")

    def get_reservation_details(self, reservation_id: str) -> Record:
        return self._record("reservations", reservation_id, f"Reservation {reservation_id} not found")

    def get_flight_status(self, flight_number: str, date: str) -> str:
        return str(self._on(flight_number, date)["status"])

    def list_all_airports(self) -> list[dict[str, str]]:
        return [{"iata": code, "city": city} for code, city in _AIRPORTS.items()]

    def search_direct_flight(self, origin: str, destination: str, date: str) -> list[Record]:
        return list(self._direct(date, origin, destination))

    def search_onestop_flight(self, origin: str, destination: str, date: str) -> list[list[Record]]:
        connections = []
        for first in self._direct(date, origin, None):
            lands = first["scheduled_arrival_time_est"]
            next_date = f"2024-05-{int(date[-2:]) + 1}" if "+1" in lands else date
            for second in self._direct(next_date, first["destination"], destination, lands):
                connections.append([{**first, "date": date}, {**second, "date": next_date}])
        return connections

    def transfer_to_human_agents(self, summary: str) -> str:
        return self.TRANSFERRED

    def send_certificate(self, user_id: str, amount: int) -> str:
        methods = self.get_user_details(user_id)["payment_methods"]
        free = next((certificate for certificate in _CERTIFICATES if certificate not in methods), None)
        if free is None:
            raise refusal("Too many certificates")
        amount = float(amount)  # type: ignore[assignment]
        self.db.edit("users", user_id)["payment_methods"][free] = {
            "id": free,
            "amount": amount,
            "source": "certificate",
        }
        return f"Certificate {free} added to user {user_id} with amount {amount:g}."

    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: str,
        cabin: str,
        flights: list[dict[str, Any]],
        passengers: list[dict[str, Any]],
        payment_methods: list[dict[str, Any]],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: str,
    ) -> Record:
        flights, passengers = _shaped(flights, _FLIGHT), _shaped(passengers, _PASSENGER)
        payments = _shaped(payment_methods, _PAYMENT)
        _one_of("flight_type", flight_type, ("round_trip", "one_way"))
        _one_of("cabin", cabin, ("business", "economy", "basic_economy"))
        _one_of("insurance", insurance, ("yes", "no"))
        user = self.get_user_details(user_id)
        reservation_id = next(
            (candidate for candidate in _RESERVATIONS if self.db.get("reservations", candidate) is None), None
        )
        if reservation_id is None:
            raise refusal("Too many reservations")
        legs, price = [], 0
        for flight in flights:
            leg = self._leg(flight, cabin, len(passengers))
            legs.append(leg)
            price += leg["price"] * len(passengers)
        price += 30 * len(passengers) * (insurance == "yes") + 50 * nonfree_baggages
        for payment in payments:
            method = _method(user, payment["payment_id"])
            if method["source"] in ("gift_card", "certificate") and method["amount"] < payment["amount"]:
                raise refusal(f"Not enough balance in payment method {payment['payment_id']}")
        total = sum(payment["amount"] for payment in payments)
        if total != price:
            raise refusal(f"Payment amount does not add up, total price is {price}, but paid {total}")
        user = self.db.edit("users", user_id)
        for payment in payments:
            method = user["payment_methods"][payment["payment_id"]]
            if method["source"] == "gift_card":
                method["amount"] -= payment["amount"]
            elif method["source"] == "certificate":
                del user["payment_methods"][payment["payment_id"]]
        for flight in flights:
            seats = self.db.edit("flights", flight["flight_number"])["dates"][flight["date"]]["available_seats"]
            seats[cabin] -= len(passengers)
        user["reservations"].append(reservation_id)
        reservation = {
            "reservation_id": reservation_id,
            "user_id": user_id,
            "origin": origin,
            "destination": destination,
            "flight_type": flight_type,
            "cabin": cabin,
            "flights": legs,
            "passengers": passengers,
            "payment_history": payments,
            "created_at": _NOW,
            "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages,
            "insurance": insurance,
        }
        return self.db.put("reservations", reservation_id, reservation)

    def cancel_reservation(self, reservation_id: str) -> Record:
        self.get_reservation_details(reservation_id)
        reservation = self.db.edit("reservations", reservation_id)
        reservation["payment_history"] += [
            {**payment, "amount": -payment["amount"]} for payment in reservation["payment_history"]
        ]
        reservation["status"] = "cancelled"
        return reservation

    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Record:
        reservation = self.get_reservation_details(reservation_id)
        price = 50 * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        payments = self._pay(reservation["user_id"], payment_id, price)
        reservation = self.db.edit("reservations", reservation_id)
        reservation["payment_history"] += payments
        reservation.update(total_baggages=total_baggages, nonfree_baggages=nonfree_baggages)
        return reservation

    def update_reservation_flights(
        self, reservation_id: str, cabin: str, flights: list[dict[str, Any]], payment_id: str
    ) -> Record:
        flights = _shaped(flights, _FLIGHT)
        reservation = self.get_reservation_details(reservation_id)
        self.get_user_details(reservation["user_id"])
        seats, price, legs = len(reservation["passengers"]), 0, []
        for flight in flights:
            unchanged = (leg for leg in reservation["flights"] if all(leg[part] == flight[part] for part in _FLIGHT))
            leg = next(unchanged, None) if cabin == reservation["cabin"] else None
            leg = copy.deepcopy(leg) or self._leg(flight, cabin, seats)
            legs.append(leg)
            price += leg["price"] * seats
        price -= sum(leg["price"] for leg in reservation["flights"]) * seats
        payments = self._pay(reservation["user_id"], payment_id, price)
        reservation = self.db.edit("reservations", reservation_id)
        reservation["payment_history"] += payments
        reservation.update(flights=legs, cabin=cabin)
        return reservation

    def update_reservation_passengers(self, reservation_id: str, passengers: list[dict[str, Any]]) -> Record:
        passengers = _shaped(passengers, _PASSENGER)
        if len(passengers) != len(self.get_reservation_details(reservation_id)["passengers"]):
            raise refusal("Number of passengers does not match")
        reservation = self.db.edit("reservations", reservation_id)
        reservation["passengers"] = passengers
        return reservation

    def _on(self, flight_number: str, date: str) -> Record:
        """Return a flight's record of one day."""
        dates = self._record("flights", flight_number, f"Flight {flight_number} not found")["dates"]
        if date not in dates:
            raise refusal(f"Flight {flight_number} not found on date {date}")
        return dates[date]  # type: ignore[no-any-return]

    def _leg(self, flight: Record, cabin: str, seats: int) -> Record:
        """Return a reservation's entry for a flight that has so many seats left."""
        number, date = flight["flight_number"], flight["date"]
        day = self._on(number, date)
        if day["status"] != "available":
            raise refusal(f"Flight {number} not available on date {date}")
        if day["available_seats"][cabin] < seats:
            raise refusal(f"Not enough seats on flight {number}")
        record = self._record("flights", number, f"Flight {number} not found")
        ends = {"origin": record["origin"], "destination": record["destination"]}
        return {"flight_number": number, **ends, "date": date, "price": day["prices"][cabin]}

    def _direct(self, date: str, origin: str, destination: str | None, after: str | None = None) -> Iterator[Record]:
        for _, flight in self.db.all("flights"):
            day = flight["dates"].get(date)
            if (
                flight["origin"] == origin
                and destination in (None, flight["destination"])
                and day is not None
                and day["status"] == "available"
                and (after is None or flight["scheduled_departure_time_est"] >= after)
            ):
                yield {**{key: value for key, value in flight.items() if key != "dates"}, **day}

    def _pay(self, user_id: str, payment_id: str, price: int) -> list[Record]:
        """Charge or refund a change of a reservation to a payment method; return the new entries of its history."""
        method = _method(self.get_user_details(user_id), payment_id)
        if method["source"] == "certificate":
            raise refusal("Certificate cannot be used to update reservation")
        if method["source"] == "gift_card":
            if method["amount"] < price:
                raise refusal("Gift card balance is not enough")
            self.db.edit("users", user_id)["payment_methods"][payment_id]["amount"] -= price
        return [{"payment_id": payment_id, "amount": price}] if price else []


def _method(user: Record, payment_id: str) -> Record:
    if payment_id not in user["payment_methods"]:
        raise refusal(f"Payment method {payment_id} not found")
    return user["payment_methods"][payment_id]  # type: ignore[no-any-return]


def _shaped(records: Sequence[Mapping[str, Any]], fields: Sequence[str]) -> list[Record]:
    """Return the records with these fields alone; ``ToolError`` where one is missing."""
    for record in records:
        if not isinstance(record, Mapping) or not set(fields) <= set(record):
            raise refusal(f"each of these needs {', '.join(fields)}")
    return [{part: record[part] for part in fields} for record in records]


def _one_of(what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise refusal(f"{what} must be one of {', '.join(allowed)}")
