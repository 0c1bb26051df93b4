"""Helpers that several sources share."""
