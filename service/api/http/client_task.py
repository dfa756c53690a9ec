"""Facts about a request from before its handler runs, as entries of the scope, which no client can set."""

# The task for the server to cancel if the client disconnects before it has the whole answer, whatever it awaits.
TASK = "levserve.task"
# When the request arrived, on the event loop's clock, if it had to wait for the model.
ARRIVED_S = "levserve.arrived_s"
