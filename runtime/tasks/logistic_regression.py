"""Multinomial logistic regression: classification by a linear model, whose loss is convex."""

from __future__ import annotations

from .classification import Classification


class LogisticRegression(Classification):
    """Cross-entropy plus `model.l2`/2 times the squared weights: with l2 = 1/(n C) scikit-learn's problem for n examples."""
