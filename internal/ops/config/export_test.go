package config

// OwnToNode is for tests.
var OwnToNode = ownToNode
