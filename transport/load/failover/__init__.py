"""A run against nodes that the tester starts, kills, stops and cuts off, with every acknowledged turn checked."""
