"""Our methods beside their authors' code: the same weights, views and draws, five steps in float64."""
