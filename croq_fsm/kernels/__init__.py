"""Start kernels that ship with croq_fsm."""
