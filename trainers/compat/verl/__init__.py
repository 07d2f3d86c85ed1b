"""Translation of verl's keys."""
