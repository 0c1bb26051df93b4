"""Measurements side by side with other implementations; ratios carry over to other machines, times do not."""
