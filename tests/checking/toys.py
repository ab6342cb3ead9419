"""Layers small enough to see that they are right; the tests derive wrong ones from them."""

import numpy as np

from numpy_minimind.layer import Layer, Parameter


def normal(*shape, scale=1.0, seed=7):
    return np.random.default_rng(seed).normal(0.0, scale, shape)


def verdicts(report):
    return {row.name: row.verdict for row in report.rows}


X = normal(5, 3)


class Gated(Layer):
    """y = tanh(x W^T) * gain, written right: the layer that the wrong ones below derive from."""

    def __init__(self, scale=1.0):
        self.weight = Parameter(normal(4, 3, scale=scale, seed=1))
        self.gain = Parameter(np.array([0.6, 0.9, 1.2, 1.4]))

    def forward(self, x):
        h = np.tanh(x @ self.weight.data.T)
        return h * self.gain.data, (x, h)

    def backward(self, dy, saved):
        x, h = saved
        da = dy * self.gain.data * (1 - h * h)
        self.gain.grad += (dy * h).sum(axis=0)
        self.weight.grad += da.T @ x
        return da @ self.weight.data


class BehindZero(Gated):
    """A projection initialised with zeros behind the layer: every gradient before it is identically zero."""

    def forward(self, x):
        y, saved = super().forward(x)
        return y * 0.0, saved

    def backward(self, dy, saved):
        return super().backward(dy * 0.0, saved)


class Scores(Layer):
    """s = q k^T with as many queries as keys, so that a transposed dk has the right shape."""

    def forward(self, q, k):
        return q @ k.T, (q, k)

    def backward(self, ds, saved):
        q, k = saved
        return ds @ k, ds.T @ q
