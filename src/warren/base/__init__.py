"""Values and rules that everything else rests on."""
