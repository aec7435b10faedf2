"""Values that all rooms of the domain are built from: attrs classes, checked fields, errors, ids, names of tenants.

May import no other folder.
"""
