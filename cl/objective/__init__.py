"""The parts of a training step: the batch, the terms that a method hands to a loss, and their negatives.

The matrix of queries and negatives is never stored. Three sums over negatives serve all losses: the
log-sum-exp of the logits (`log_partition`: InfoNCE and its relatives), and in `sums`, the sums of
softplus(s - b) (losses that classify each pair by itself) and of log(1 - exp(s - Z)) (Invariant Spread).
`blocks` computes the logits block by block, in memory linear in N and K, for the values and again for the
exact gradients.
"""
