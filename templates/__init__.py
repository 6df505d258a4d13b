"""C++ headers of the scheduler, the bindings, and the Jinja templates that specialise them."""
