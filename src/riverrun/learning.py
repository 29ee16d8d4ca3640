"""Online learning on shared state: a model is trained by a stream of examples while another stream asks it.

`ftrl` trains a logistic regression by FTRL-proximal and gives a `Model`, from which predictions are made.
"""

from riverrun.algorithms.learning.ftrl import Model, ftrl

__all__ = ["Model", "ftrl"]
