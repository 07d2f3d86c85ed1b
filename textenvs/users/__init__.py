"""Simulated users."""
