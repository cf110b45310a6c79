"""What federated methods really minimise, on quadratics, exactly."""
