"""Tests mirror the rooms of the package; `support` holds what they share."""
