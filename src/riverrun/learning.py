"""Learning that is kept up to date: online, from a stream of examples, and fits over all examples that there are.

| what | functions |
|---|---|
| online | `ftrl`: a logistic regression trained by a stream, while another stream asks it; gives a `Model` |
| fits | `logistic_regression` by gradient descent, gives a `Regression`; `k_means`, gives `Clusters` |

A fit is that of the rows that there are: a row that is deleted leaves no trace.
"""

from riverrun.algorithms.learning.ftrl import Model, ftrl
from riverrun.algorithms.learning.k_means import Clusters, k_means
from riverrun.algorithms.learning.logistic import Regression, logistic_regression

__all__ = ["Clusters", "Model", "Regression", "ftrl", "k_means", "logistic_regression"]
