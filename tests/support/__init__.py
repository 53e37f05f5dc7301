"""Real parties for the tests to talk to: listeners, a scripted model, downstreams, clients. Nothing here is a mock."""
