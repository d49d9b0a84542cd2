"""Verifies a checkpoint: runs the reference and kaminari stage by stage and says where they part.

The reference runs first and leaves a trace; kaminari is then held to the trace. The two models are never in
memory at once, and a trace can be saved and used on another machine.
"""
