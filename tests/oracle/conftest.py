"""The oracle's tests run models."""

from one_thread import one_thread as one_thread
