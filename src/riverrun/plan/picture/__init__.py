"""Pictures of plans: what is in them (`figure`), where it lies (`layout`), how it is drawn (`svg`, `dot`)."""
