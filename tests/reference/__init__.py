"""A readable scheduler, written from docs/scheduler.md and independent of the C++ that it is compared with.

``reference.scheduler.Scheduler(module.constants())`` has the calls of the extension module's ``Scheduler``. Lists and
dictionaries, no capacities, no reuse of memory: what is read here is the rule, not how to be fast.
"""
