"""Task: multinomial logistic regression, which is classification by a linear model, with a convex loss."""

from __future__ import annotations

from .classification import Classification


class LogisticRegression(Classification):
    """Cross-entropy plus `model.l2`/2 times the squared weights. l2 = 1/(n C) equals scikit-learn's C for n examples."""
