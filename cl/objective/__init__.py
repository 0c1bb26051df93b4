"""Sums over negatives without a matrix of queries and negatives.

Three of them serve all losses: the log-sum-exp of the logits (InfoNCE and its relatives), the sum of
softplus(s - b) (losses that classify each pair by itself), and the sum of log(1 - exp(s - Z)) (Invariant
Spread). Each is computed block by block, in memory linear in N and K, with exact gradients.
"""
