"""`/api/v1/agents`: the hosted agents, and those of the database, which are made and changed here.

Agents are stored by the folder above; this package decodes requests, decides on access and encodes answers.
"""

PREFIX = "/api/v1/agents"
