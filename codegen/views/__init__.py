"""Views: from a Plan to the prepared tables that the templates print. All choices and arithmetic end here."""
