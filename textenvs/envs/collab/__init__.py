"""What the CollabLLM environments share."""
