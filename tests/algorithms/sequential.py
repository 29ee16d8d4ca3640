"""FTRL-proximal, one mini-batch after the other, in plain NumPy and dictionaries, to compare `ftrl` with.

Examples are tuples (id, batch, label, features, values). ``lag`` is how many mini-batches get the same parameters,
or None for all: 1 is the textbook. The sums are in the order that `ftrl` documents, so the bits can be compared too.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np


class Sequential:
    """Parameters by feature, and the mean loss of each mini-batch before it was learned."""

    def __init__(self, alpha=0.1, beta=1.0, l1=1.0, l2=1.0, trainers=1):
        self.alpha, self.beta, self.l1, self.l2, self.trainers = alpha, beta, l1, l2, trainers
        self.z, self.n, self.batch = {}, {}, {}
        self.losses = {}

    def weight(self, feature):
        z, n = self.z.get(feature, 0.0), self.n.get(feature, 0.0)
        if abs(z) <= self.l1:
            return 0.0
        return (np.sign(z) * self.l1 - z) / ((self.beta + np.sqrt(n)) / self.alpha + self.l2)

    def chance(self, features, values=None):
        values = [1.0] * len(features) if values is None else values
        margin = sum(self.weight(f) * x for f, x in zip(features, values, strict=True))
        return 1 / (1 + np.exp(-margin))

    def gradient(self, examples):
        """The gradient of some examples, in the order of their ids, and their losses."""
        gradient, losses = {}, []
        for _, _, label, features, values in examples:
            margin = 0.0
            for feature, value in zip(features, values, strict=True):
                margin += self.weight(feature) * value
            wrong = float((1.0 / (1.0 + np.exp(-np.array([margin]))) - label)[0])
            losses.append(float(np.logaddexp(0.0, margin) - label * margin))
            for feature, value in zip(features, values, strict=True):
                gradient[feature] = gradient.get(feature, 0.0) + wrong * value
        return gradient, losses

    def step(self, batch, parts):
        """Apply the gradients of a mini-batch, one of each trainer."""
        for feature in {feature for part in parts for feature in part}:
            g = 0.0
            for each in sorted(part[feature] for part in parts if feature in part):
                g += each
            z, n = self.z.get(feature, 0.0), self.n.get(feature, 0.0)
            rate = (np.sqrt(n + g * g) - np.sqrt(n)) / self.alpha
            self.z[feature] = z + (g - rate * self.weight(feature))
            self.n[feature] = n + g * g
            self.batch[feature] = batch

    def train(self, examples, lag=1):
        """Learn from the examples of one epoch."""
        ordered = sorted(examples, key=lambda example: (example[1], example[0]))
        batches = [(number, list(some)) for number, some in groupby(ordered, lambda e: e[1])]
        lag = len(batches) if lag is None else lag
        for start in range(0, len(batches), max(lag, 1)):
            steps = []
            for number, some in batches[start : start + lag]:
                dealt = [
                    [e for e in some if e[0] % self.trainers == t] for t in range(self.trainers)
                ]
                results = [self.gradient(part) for part in dealt if part]
                losses = [loss for _, part in results for loss in part]
                self.losses[number] = (len(some), sum(losses) / len(losses))
                steps.append((number, [gradient for gradient, _ in results]))
            for number, parts in steps:
                self.step(number, parts)

    def parameters(self):
        return {f: (self.batch[f], self.z[f], self.n[f]) for f in self.z}
