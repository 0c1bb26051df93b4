"""Features of a frozen encoder, and nearest neighbours among them."""
