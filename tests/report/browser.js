// Stands in for the library that the browser's wheel was made for: opens a page in a frame, runs a script beside it.
window.Plotly = {
  version: "2.0.0",
  toImage: async ({data: [{html, script, width}]}) => {
    const frame = document.createElement("iframe");
    frame.style = `border:0;position:absolute;left:0;top:0;width:${width}px;height:900px`;
    const loaded = new Promise((resolve) => { frame.onload = resolve; });
    frame.srcdoc = html;
    document.body.append(frame);
    await loaded;
    frame.style.height = `${frame.contentDocument.documentElement.scrollHeight}px`;
    const said = await new Function("document", "window", script)(frame.contentDocument, frame.contentWindow);
    frame.remove();
    return JSON.stringify(said === undefined ? null : said);
  },
};
