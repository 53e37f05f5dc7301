"""The operator's files as checked, frozen values. Only this package reads them; it starts nothing."""
