"""The IR, its operator table, sizes and proofs about them, the verifier and the printer."""
