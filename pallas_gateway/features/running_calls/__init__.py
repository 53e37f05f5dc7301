"""`/api/v1/calls`: running and recent calls over HTTP, without their arguments and results, and the end of one."""
