// The site's search without a server. Its worker cannot be a Worker where a page was opened as a file: browsers refuse one from there. So
// it runs in a hidden frame of the page instead, with the same messages. docs/site.py puts this in the place of a script from elsewhere;
// the theme asks for the name to see where its worker runs.
window.IFrameWorker = class extends EventTarget {
  constructor(address) {
    super();
    this.waiting = [];
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    const inside = frame.contentWindow;
    inside.document.open();
    inside.document.write("<!doctype html><body></body>");
    inside.document.close();
    const load = (source) => new Promise((done, failed) => {
      const script = inside.document.createElement("script");
      Object.assign(script, { src: source, onload: done, onerror: failed });
      inside.document.body.append(script);
    });
    inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
    inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve());
    this.frame = frame;
    load(String(address)).then(() => {
      this.send = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      this.waiting.forEach(this.send);
    });
  }

  postMessage(data) {
    if (this.send) this.send(data);
    else this.waiting.push(data);
  }

  terminate() {
    this.frame.remove();
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
