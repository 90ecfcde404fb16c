"""Experiments made of many episodes."""
