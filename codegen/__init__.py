"""From a resolved spec to a Plan, and from a Plan to a generated engine folder and a built engine."""
