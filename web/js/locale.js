// uPlot makes a format of the browser's language when it is loaded, and there are no plots where
// that is none, as "en-US@posix". What is shown is in English anyway.
Object.defineProperty(navigator, "language", { value: "en" });
