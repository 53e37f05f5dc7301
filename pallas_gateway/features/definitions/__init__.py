"""Agents as data: definitions that people without a shell make and change over HTTP, kept with their versions."""
