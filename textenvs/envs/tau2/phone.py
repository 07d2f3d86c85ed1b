"""The telecom domain, the user's side: a phone, its surroundings, and what its owner can see and do on it.

The reports of the tools are in this project's words; their effects on the phone are those of tau2-bench's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .database import Record, Side, refusal

_MODES: Mapping[str, str] = {"4g_5g_preferred": "5G", "4g_only": "4G", "3g_only": "3G", "2g_only": "2G"}
_APN: Mapping[str, Any] = {
    "apn_name": "internet",
    "reset_at_reboot": False,
    "mms_apn": "mms",
    "mmsc_url": "http://mms.carrier.com/mms/wapenc",
    "mms_proxy": None,
    "mms_port": None,
}
_PERMISSIONS = ("sms", "storage", "phone", "network")
_VPN: Mapping[str, Any] = {
    "server_address": "192.168.1.1",
    "protocol": "OpenVPN",
    "server_performance": "excellent",
}
# In Mbit/s, the slowest and the fastest of a network, and the share of its speed by signal.
_SPEEDS: Mapping[str, tuple[float, float]] = {
    "2G": (0.1, 0.4),
    "3G": (1.0, 5.0),
    "4G": (10.0, 100.0),
    "5G": (50.0, 500.0),
}
_SIGNALS: Mapping[str, float] = {"poor": 0.2, "fair": 0.5, "good": 0.8, "excellent": 1.0}
# The names in the assistant's manual.
_SIM = {"active": "Active", "missing": "Missing", "locked_pin": "Locked (PIN)", "locked_puk": "Locked (PUK)"}
_GRADES = ((1, "Very Poor"), (5, "Poor"), (25, "Fair"), (100, "Good"))


class Phone(Side):
    """The user's side."""

    @property
    def device(self) -> Record:
        return self._record("device", "device", "there is no phone")

    @property
    def surroundings(self) -> Record:
        return self._record("surroundings", "surroundings", "there is no phone")

    # What the user can look at.

    def check_status_bar(self) -> str:
        return self._bar()

    def check_network_status(self) -> str:
        phone = self.device
        facts = {
            "airplane mode": _on(phone["airplane_mode"]),
            "SIM card": self._sim(),
            "cellular connection": phone["network_connection_status"],
            "signal": phone["network_signal_strength"],
            "network type": phone["network_technology_connected"],
            "mobile data": _on(phone["data_enabled"]),
            "data roaming": _on(phone["roaming_enabled"]),
            "Wi-Fi": _on(phone["wifi_enabled"]),
            "Wi-Fi network": phone.get("wifi_ssid") or "none" if phone["wifi_connected"] else "not connected",
        }
        return "\n".join(f"{name}: {value}" for name, value in facts.items())

    def check_network_mode_preference(self) -> str:
        return f"Preferred network mode: {self.device['network_mode_preference']}"

    def check_sim_status(self) -> str:
        return f"SIM card: {_SIM.get(self._sim(), self._sim())}"

    def check_data_restriction_status(self) -> str:
        return f"Data Saver mode is {_on(self.device['data_saver_mode'])}."

    def check_apn_settings(self) -> str:
        apn = self.device["active_apn_settings"]
        return f"APN name: {apn['apn_name']}\nMMSC URL (picture messages): {apn['mmsc_url'] or 'not set'}"

    def check_wifi_status(self) -> str:
        phone = self.device
        if not (phone["wifi_enabled"] and phone["wifi_connected"]):
            return f"Wi-Fi is {_on(phone['wifi_enabled'])}, and not connected."
        return f"Wi-Fi is ON, connected to {phone['wifi_ssid']!r}, signal {phone['wifi_signal_strength']}."

    def check_wifi_calling_status(self) -> str:
        return f"Wi-Fi Calling is {_on(self.device['wifi_calling_enabled'])}."

    def check_vpn_status(self) -> str:
        phone = self.device
        if not phone["vpn_connected"]:
            return f"VPN is not connected; in the settings it is {_on(phone['vpn_enabled_setting'])}."
        details = phone.get("vpn_details")
        return "VPN is ON and connected." + "".join(f" {name}: {value}." for name, value in (details or {}).items())

    def check_installed_apps(self) -> str:
        return f"Apps on this phone: {', '.join(self.device['app_statuses'])}"

    def check_app_status(self, app_name: str) -> str:
        return self.check_app_permissions(app_name)

    def check_app_permissions(self, app_name: str) -> str:
        app = self.device["app_statuses"].get(app_name)
        if app is None:
            return f"There is no app {app_name!r} on this phone."
        granted = [name for name in _PERMISSIONS if app["permissions"].get(name)]
        return f"Permissions of {app_name!r}: {', '.join(granted) or 'none'}"

    def can_send_mms(self) -> str:
        return f"The messaging app {'can' if self._mms() else 'cannot'} send MMS messages."

    def run_speed_test(self) -> str:
        speed, grade = self._speed()
        return f"Speed test failed: {grade}." if speed is None else f"Speed test: {speed:.2f} Mbit/s ({grade})"

    def check_payment_request(self) -> str:
        request = self.surroundings.get("payment_request")
        if request is None:
            return "There is no payment request."
        return f"There is a payment request for bill {request['bill_id']}: ${request['amount_due']}."

    # What the user can do.

    def set_network_mode_preference(self, mode: str) -> str:
        if mode not in _MODES:
            return self._done(f"There is no network mode {mode!r}; there are: {', '.join(_MODES)}.")
        self._set(network_mode_preference=mode)
        self.simulate_network_search()
        return self._done(f"Preferred network mode: {mode}.")

    def toggle_airplane_mode(self) -> str:
        on = not self.device["airplane_mode"]
        self._set(airplane_mode=on)
        if on or self.device["wifi_enabled"]:
            self._set(wifi_connected=False, wifi_ssid=None, wifi_signal_strength="none")
        if on and self.device["vpn_connected"]:
            self._set(vpn_connected=False, vpn_details=None)
        self.simulate_network_search()
        return self._done(f"Airplane mode is {_on(on)}.")

    def reseat_sim_card(self) -> str:
        self._set(sim_card_missing=False)
        self.simulate_network_search()
        if self._sim() == "missing":
            raise refusal("the SIM card is missing")
        return self._done("The SIM card is seated again.")

    def toggle_data(self) -> str:
        return self._toggle("data_enabled", "Mobile data", search=True)

    def toggle_roaming(self) -> str:
        return self._toggle("roaming_enabled", "Data roaming", search=True)

    def toggle_data_saver_mode(self) -> str:
        return self._toggle("data_saver_mode", "Data Saver mode")

    def toggle_wifi_calling(self) -> str:
        return self._toggle("wifi_calling_enabled", "Wi-Fi Calling")

    def toggle_wifi(self) -> str:
        if self.device["airplane_mode"]:
            return self._done("Wi-Fi cannot be changed in airplane mode.")
        on = not self.device["wifi_enabled"]
        self._set(wifi_enabled=on)
        if not on:
            self._set(wifi_connected=False, wifi_ssid=None, wifi_signal_strength="none")
        return self._done(f"Wi-Fi is {_on(on)}.")

    def set_apn_settings(self, apn_settings: dict[str, Any]) -> str:
        unknown = set(apn_settings) - set(_APN)
        if unknown or apn_settings.get("apn_name", "internet") not in ("internet", "broken"):
            raise refusal(f"APN settings have {', '.join(_APN)}; the name is internet or broken")
        self._set(active_apn_settings={**_APN, **apn_settings})
        self.simulate_network_search()
        return self._done(f"APN: {self.device['active_apn_settings']['apn_name']}.")

    def reset_apn_settings(self) -> str:
        self._apn(reset_at_reboot=True)
        self.simulate_network_search()
        return self._done("The APN settings will be reset when the phone restarts.")

    def connect_vpn(self) -> str:
        if self.device["vpn_connected"]:
            return "The VPN is connected already."
        self._set(vpn_connected=True, vpn_details=dict(_VPN))
        return self._done("The VPN is connected.")

    def disconnect_vpn(self) -> str:
        if not self.device["vpn_connected"]:
            return self._done("There is no VPN connection to end.")
        self._set(vpn_connected=False, vpn_details=None)
        return self._done("The VPN is disconnected.")

    def grant_app_permission(self, app_name: str, permission: str) -> str:
        return self._permission(app_name, permission, True)

    def reboot_device(self) -> str:
        if self.device["active_apn_settings"].get("reset_at_reboot"):
            self._set(active_apn_settings=dict(_APN))
        self.simulate_network_search()
        return self._done("The phone has restarted.")

    def make_payment(self) -> str:
        request = self.surroundings.get("payment_request")
        if request is None:
            return "There is no payment request."
        self._around(payment_request={**request, "paid": True})
        return f"${request['amount_due']} paid for bill {request['bill_id']}."

    # The actions that tasks begin with, and their assertions.

    def set_user_info(self, name: str, phone_number: str) -> None:
        self._around(name=name, phone_number=phone_number)

    def set_user_location(self, abroad: bool) -> None:
        self._around(is_abroad=abroad)

    def turn_airplane_mode_on(self) -> None:
        self._until("airplane_mode", True, self.toggle_airplane_mode)

    def turn_airplane_mode_off(self) -> None:
        self._until("airplane_mode", False, self.toggle_airplane_mode)

    def turn_data_on(self) -> None:
        self._set(data_enabled=True)

    def turn_data_off(self) -> None:
        self._until("data_enabled", False, self.toggle_data)

    def turn_roaming_on(self) -> None:
        self._until("roaming_enabled", True, self.toggle_roaming)

    def turn_roaming_off(self) -> None:
        self._until("roaming_enabled", False, self.toggle_roaming)

    def turn_data_saver_mode_on(self) -> None:
        self._set(data_saver_mode=True)

    def turn_data_saver_mode_off(self) -> None:
        self._set(data_saver_mode=False)

    def unseat_sim_card(self) -> None:
        self._set(sim_card_missing=True)
        self.simulate_network_search()

    def lock_sim_card(self, mode: str) -> None:
        if mode in ("pin", "puk"):
            self._set(sim_card_status=f"locked_{mode}")
        self.simulate_network_search()

    def break_apn_settings(self) -> None:
        self._apn(apn_name="broken")
        self.simulate_network_search()

    def break_apn_mms_setting(self) -> None:
        self._apn(mmsc_url=None)

    def set_wifi_calling(self, enabled: bool, mms_over_wifi: bool | None = None) -> None:
        self._set(wifi_calling_enabled=enabled)
        if mms_over_wifi is not None:
            self._set(wifi_calling_mms_over_wifi=mms_over_wifi)

    def break_vpn(self) -> None:
        self._set(vpn_connected=True, vpn_details={**_VPN, "server_performance": "poor"})

    def remove_app_permission(self, app_name: str, permission: str) -> None:
        self._permission(app_name, permission, False)

    def simulate_network_search(self) -> None:
        """Search again for the phone's network."""
        phone, around = self.device, self.surroundings
        status, technology, signal = "no_service", "none", "none"
        if (
            self._sim() == "active"
            and not phone["airplane_mode"]
            and phone["active_apn_settings"]["apn_name"] != "broken"
            and around["line_active"]
        ):
            signals = around["signal_strength"]
            status, technology = "connected", _MODES[phone["network_mode_preference"]]
            if technology == "5G" and signals.get("5G", "none") == "none":
                technology = "4G"
            signal = signals.get(technology, "none")
        self._set(
            network_connection_status=status, network_technology_connected=technology, network_signal_strength=signal
        )

    def assert_airplane_mode_status(self, expected_status: bool) -> bool:
        return bool(self.device["airplane_mode"] == expected_status)

    def assert_service_status(self, expected_status: str) -> bool:
        return bool(self.device["network_connection_status"] == expected_status)

    def assert_mobile_data_status(self, expected_status: bool) -> bool:
        return self._data_works() == expected_status

    def assert_mobile_roaming_status(self, expected_status: bool) -> bool:
        return bool(self.device["roaming_enabled"] == expected_status)

    def assert_mobile_data_saver_mode_status(self, expected_status: bool) -> bool:
        return bool(self.device["data_saver_mode"] == expected_status)

    def assert_internet_speed(self, expected_speed: float, expected_desc: str | None = None) -> bool:
        speed, grade = self._speed()
        return (speed or 0.0) >= expected_speed and (expected_desc or grade).lower() == grade.lower()

    def assert_internet_not_excellent(self) -> bool:
        return self._speed()[1] != "Excellent"

    def assert_can_send_mms(self, expected_status: bool) -> bool:
        return self._mms() == expected_status

    def assert_mobile_data_usage_exceeded(self, expected_status: bool) -> bool:
        return bool(self.surroundings["mobile_data_usage_exceeded"] == expected_status)

    # Inside.

    def _set(self, **values: Any) -> None:
        self.db.edit("device", "device").update(values)

    def _around(self, **values: Any) -> None:
        self.db.edit("surroundings", "surroundings").update(values)

    def _apn(self, **values: Any) -> None:
        self._set(active_apn_settings={**self.device["active_apn_settings"], **values})

    def _until(self, name: str, value: bool, toggle: Any) -> None:
        """Toggle once, and once more if that was the wrong way, with all side effects of toggling, as tau2 does."""
        toggle()
        if self.device[name] != value:
            toggle()

    def _toggle(self, name: str, called: str, *, search: bool = False) -> str:
        on = not self.device[name]
        self._set(**{name: on})
        if search:
            self.simulate_network_search()
        return self._done(f"{called} is {_on(on)}.")

    def _permission(self, app_name: str, permission: str, granted: bool) -> str:
        permission = permission.lower()
        if app_name not in self.device["app_statuses"]:
            return self._done(f"There is no app {app_name!r} on this phone.")
        if permission not in _PERMISSIONS:
            return self._done(f"There is no permission {permission!r}; there are: {', '.join(_PERMISSIONS)}.")
        self.db.edit("device", "device")["app_statuses"][app_name]["permissions"][permission] = granted
        return self._done(f"{app_name!r} {'has' if granted else 'no longer has'} the permission {permission!r}.")

    def _done(self, what: str) -> str:
        return f"{what}\n{self._bar()}"

    def _bar(self) -> str:
        phone = self.device
        items = ["airplane mode"] if phone["airplane_mode"] else [f"signal: {phone['network_signal_strength']}"]
        if not phone["airplane_mode"]:
            connected = phone["network_technology_connected"] != "none"
            items += [phone["network_technology_connected"]] if connected else []
            items += ["data on"] if connected and phone["data_enabled"] else ["data off"]
            items += ["data saver"] if connected and phone["data_enabled"] and phone["data_saver_mode"] else []
        if phone["wifi_enabled"] and phone["wifi_connected"]:
            items.append(f"Wi-Fi: {phone.get('wifi_ssid') or 'on'}")
        items += ["VPN"] if phone["vpn_connected"] else []
        return "Status bar: " + " | ".join([*items, f"battery {phone['battery_level']}%"])

    def _sim(self) -> str:
        return "missing" if self.device["sim_card_missing"] else str(self.device["sim_card_status"])

    def _data_works(self) -> bool:
        phone, around = self.device, self.surroundings
        return not (
            phone["airplane_mode"]
            or phone["network_signal_strength"] == "none"
            or phone["network_connection_status"] == "no_service"
            or (around["is_abroad"] and not (phone["roaming_enabled"] and around["roaming_allowed"]))
            or not phone["data_enabled"]
            or around["mobile_data_usage_exceeded"]
        )

    def _speed(self) -> tuple[float | None, str]:
        """Return the speed in Mbit/s (``None`` without a connection) and its name."""
        phone = self.device
        if not self._data_works():
            return None, "No Connection"
        factor = 1.0
        if phone["vpn_connected"] and (phone.get("vpn_details") or {}).get("server_performance") == "poor":
            factor = 0.1
        if phone["data_saver_mode"]:
            factor *= 0.2
        slow, fast = _SPEEDS.get(phone["network_technology_connected"], (0.0, 0.0))
        speed = round((slow + fast) / 2.0 * _SIGNALS.get(phone["network_signal_strength"], 0.0) * factor, 2)
        return speed, next((name for limit, name in _GRADES if speed < limit), "Excellent")

    def _mms(self) -> bool:
        phone = self.device
        granted = phone["app_statuses"].get("messaging", {}).get("permissions", {})
        return bool(
            self._data_works()
            and phone["network_technology_connected"] != "2G"
            and not (phone["wifi_calling_enabled"] and phone["wifi_calling_mms_over_wifi"])
            and phone["active_apn_settings"]["mmsc_url"] is not None
            and granted.get("storage")
            and granted.get("sms")
        )


def _on(value: bool) -> str:
    return "ON" if value else "OFF"
