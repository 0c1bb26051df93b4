"""The stages of the pipeline, one Click entry point each: read params, validate, call `cl`, write results."""
